"""Metrics that clients export: where they send them, and what is taken of them."""
