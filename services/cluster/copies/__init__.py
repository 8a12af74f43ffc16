"""Announcement, transfer and verification of store copies, and operator commands for copies."""
