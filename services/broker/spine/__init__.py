"""The store of records, and modules shared by the whole core: values, errors, settings, clocks, topics."""
