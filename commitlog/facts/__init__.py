"""Defines the facts that records contain, and encodes acknowledgement and lease records."""
