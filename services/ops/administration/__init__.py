"""The operations on topics, groups, clients, users and the clock, and the journal of operations."""
