"""Implements the storage layer: the record format, log, disk interface, and limits."""
