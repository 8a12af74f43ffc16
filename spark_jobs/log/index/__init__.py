"""Finds what to read of the log: ranges by time or log offset, and records of topics by queue indexes."""
