"""Periodic checks of the settings, sessions, response times, clock and records of the shared log."""
