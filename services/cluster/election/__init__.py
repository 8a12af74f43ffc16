"""The leader election: a state machine that performs no I/O, and the state that its decisions depend on."""
