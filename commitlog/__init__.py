"""The lowest layer, which contains the record format, the log, the disk interface, the errors, and the
limits."""
