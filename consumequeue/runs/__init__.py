"""Sorted runs, their Bloom filters, and the stores that merge them."""
