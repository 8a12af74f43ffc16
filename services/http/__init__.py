"""Calls of our own HTTP interface."""
