"""A log that is shared by several machines, including its record format, its readers, and leader election."""
