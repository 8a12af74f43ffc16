"""The leadership of a node, which covers its core, its followers and operator commands."""
