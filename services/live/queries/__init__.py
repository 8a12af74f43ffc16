"""Queries that are executed in small steps, so that no query blocks the event loop."""
