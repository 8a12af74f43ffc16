"""Forwarding of client calls and HTTP requests to the leader by other nodes."""
