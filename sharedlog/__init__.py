"""A log that several machines share: its records, what every reader makes of them, and who may write."""
