"""Commands to send, find, watch and explain messages."""
