"""A hierarchical timing wheel for integers, which has no knowledge of messages."""
