"""Periodic checks of the shared log: its settings, its sessions, its response, its clock and its records."""
