"""The single pass over the log, and lookups in the data sets that it writes."""
