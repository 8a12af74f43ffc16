"""The terminal of every command: options and values read, results printed, the broker called."""
