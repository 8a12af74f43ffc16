"""Delivery data, which are the index of each queue, the offsets of each group, and filters."""
