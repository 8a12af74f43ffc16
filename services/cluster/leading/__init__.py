"""One lead of a node: the core, the followers, the orders of an operator."""
