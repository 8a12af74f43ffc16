"""Common parts of all commands: options, values, output, and calls to the broker."""
