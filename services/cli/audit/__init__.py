"""Audit commands: runs, results, mappings, plans, seals, and the nightly schedule."""
