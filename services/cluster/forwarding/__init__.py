"""Forwarding of client calls and HTTP requests by a node while another node leads."""
