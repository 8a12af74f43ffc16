"""Messages that agree with a database transaction: half messages, outcomes, check-backs."""
