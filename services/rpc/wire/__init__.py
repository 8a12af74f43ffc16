"""Requests and replies as bytes: messages, names, filters, addresses, statuses."""
