"""A generated shop of any size: its log and its books, with planted faults and the expected findings."""
