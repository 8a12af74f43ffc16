"""Requests and answers of the HTTP interface: bodies, callers, errors, limits and shapes."""
