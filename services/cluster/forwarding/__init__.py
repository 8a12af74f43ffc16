"""Forwards the gRPC calls and HTTP requests of clients from a follower to the leader."""
