"""Periodic checks of the shared log's settings, sessions, response times, clock and records."""
