"""Announces, transfers and verifies copies of a store, and replaces the stores of stopped nodes."""
