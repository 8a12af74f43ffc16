"""A log shared by several machines: its records, their interpretation by readers, and leadership."""
