"""Verifies the parts of a store against each other: queues, key index, snapshots, timers, and records."""
