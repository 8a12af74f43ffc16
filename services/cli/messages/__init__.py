"""Messages: sent, found, followed, explained."""
