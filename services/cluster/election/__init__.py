"""The election of the leader: a state machine without I/O, with the state from which it derives decisions."""
