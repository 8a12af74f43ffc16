"""Announcement, transfer, and verification of store copies, and operations on copies on stopped nodes."""
