"""The leadership of a node, which covers the core, the followers and the operator commands."""
