"""A hierarchical timing wheel for integer timers. The package does not depend on the message format."""
