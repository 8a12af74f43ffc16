"""Copies of a store between nodes: their announcement, transfer and verification, and operator commands."""
