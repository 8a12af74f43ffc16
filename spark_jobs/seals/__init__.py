"""Closed books: windows of event time, sealed with counts and digests."""
