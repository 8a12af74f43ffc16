"""The parts of clients.py: processes with one client each."""
