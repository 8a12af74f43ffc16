"""The lowest layer: the record format, the log, the disk interface, the errors, and the limits."""
