"""Metrics exported by clients."""
