"""A log that is shared by several nodes, including its record format, its readers, and leader election."""
