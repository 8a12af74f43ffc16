"""The state of a broker: requests, and rows that evaluate the answers."""
