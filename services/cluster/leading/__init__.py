"""The leadership of a node, including its core, its followers, and operator commands."""
