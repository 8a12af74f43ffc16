"""The operations on messages: send, read, search, receive and acknowledge."""
