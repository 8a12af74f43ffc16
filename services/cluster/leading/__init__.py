"""A node's leadership, including its core, its followers and operator commands."""
