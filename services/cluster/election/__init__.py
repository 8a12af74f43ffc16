"""The leader election, implemented as a state machine without I/O."""
