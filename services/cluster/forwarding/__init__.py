"""Forwards client calls and HTTP requests from followers to the leader."""
