"""Handlers of the producer and consumer RPCs: route, send, receive, acknowledge."""
