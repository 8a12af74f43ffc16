"""Parts of `cluster.py`: what a second copy costs."""
