"""Queries that read the core in small steps, so that no query blocks the event loop."""
