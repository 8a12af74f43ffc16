"""Implements consumer groups: offsets, filters, leases, receives, lite topics, and dead letters."""
