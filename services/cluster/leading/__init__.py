"""The leadership of a node: the core, the followers, and the commands of an operator."""
