"""Parsing and formatting of time spans and points in time."""
