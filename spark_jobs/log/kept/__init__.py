"""Reads what is kept of deleted segments: records of keep files, and timers of partition files."""
