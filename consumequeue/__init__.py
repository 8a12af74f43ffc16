"""The delivery state, which consists of the index of each queue, the offsets of each group, and the
filters."""
