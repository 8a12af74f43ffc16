"""Spans and moments as people write them."""
