"""A hierarchical timing wheel for integers, which does not depend on messages."""
