"""Answers of a node to clients while another node leads."""
