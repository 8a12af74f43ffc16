"""Who leads: the election as a machine without I/O, and all that it goes by."""
