"""Connected clients, and calls that wait for messages."""
