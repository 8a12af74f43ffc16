"""The lowest layer: the record format, the log of records, the disk, the errors, and the limits."""
