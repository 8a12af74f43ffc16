"""The election of the leader: a machine without I/O, and the state for its decisions."""
