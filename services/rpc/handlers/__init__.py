"""Handlers of the RPCs of producers and consumers: route, send, receive, acknowledge."""
