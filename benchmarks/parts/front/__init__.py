"""The parts of front.py: the broker, calls by h2load, idle connections."""
