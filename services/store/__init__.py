"""Tools for a store: they look at it, prove it, copy it, and repair what can be made again."""
