"""Periodic checks of the shared log: settings, sessions, response times, clock and records."""
