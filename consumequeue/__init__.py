"""The delivery state: the index of each queue, the offsets of each group, and the filters."""
