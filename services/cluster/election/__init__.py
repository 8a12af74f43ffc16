"""The election of the leader: a state machine without I/O, and the state on which its decisions are based."""
