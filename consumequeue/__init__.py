"""Manages the delivery state, which consists of queue indexes, group offsets, and filters."""
