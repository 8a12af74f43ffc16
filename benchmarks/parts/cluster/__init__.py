"""Parts of `cluster.py`: the cost of a second copy."""
