"""Rebuilds the derived data of a store, and moves unrecoverable data to quarantine."""
