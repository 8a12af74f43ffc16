"""Settings as command-line options, and commands that show them with their origins."""
