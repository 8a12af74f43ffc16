"""Snapshots of the broker's state, and the tables whose rows they capture."""
