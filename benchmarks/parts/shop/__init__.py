"""A made-up shop of any size, its log and its books, with planted faults and their truth."""
