"""A hierarchical timing wheel for integers, independent of messages."""
