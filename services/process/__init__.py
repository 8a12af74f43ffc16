"""Process-level functions: event loop, logs, memory, ports, private files."""
