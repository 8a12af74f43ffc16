"""The key index and the timer index, which are kept in sorted runs."""
