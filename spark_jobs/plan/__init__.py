"""The repair plan: statements and messages that would put right what an audit found."""
