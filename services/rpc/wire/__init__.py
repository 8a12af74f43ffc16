"""Encoding of requests and replies: messages, names, filters, addresses, statuses."""
