"""Copies of a store between nodes: announced, served, fetched, replaced, taken back into the cluster."""
