"""Who gets what: the index of each queue, the offsets of each group, and filters."""
