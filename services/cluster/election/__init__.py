"""The election of the leader: a state machine without I/O, and the state for its decisions."""
