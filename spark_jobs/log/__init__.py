"""Reads the log of a store into columns, without Spark: locates, verifies, and decodes the records."""
