"""Implements storage, including the record format, the log, the disk interface, and the limits."""
