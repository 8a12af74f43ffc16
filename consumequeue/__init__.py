"""The state of deliveries: the index of each queue, the offsets of each group, and filters."""
