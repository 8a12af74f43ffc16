"""Queries that read the core in slices, so that no answer blocks the event loop."""
