"""Announcement, transfer and verification of store copies, and operations on the copies of stopped nodes."""
