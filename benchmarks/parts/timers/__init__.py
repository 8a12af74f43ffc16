"""The parts of timers.py: the structure, the core, Redis, the server with its clients."""
