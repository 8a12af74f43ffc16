"""The answers of a node to clients while another one leads."""
