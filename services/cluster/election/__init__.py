"""The election of the leader as a state machine without I/O, and the state on which its decisions depend."""
