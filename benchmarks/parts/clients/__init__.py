"""The parts of clients.py: processes with one client each, and how one is asked."""
