"""Periodic checks of the shared log: its settings, its answers and its records."""
