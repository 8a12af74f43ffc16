"""The leader election, a state machine that performs no I/O, and the state on which its decisions depend."""
