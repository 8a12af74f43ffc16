"""Scans the log: cuts it into slices, locates and verifies their records, and decodes them."""
