"""One lead of a node: the core, the followers, and the orders of an operator."""
