"""The state of deliveries, with the index of each queue, the offsets of each group, and filters."""
