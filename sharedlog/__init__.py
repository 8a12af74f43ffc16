"""A log shared by several machines, with its record format, its readers, and the election of a leader."""
