"""A log shared by several nodes, with its record format, readers, and leader election."""
