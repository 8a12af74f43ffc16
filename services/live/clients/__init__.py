"""Connected clients, and the calls that wait for messages."""
