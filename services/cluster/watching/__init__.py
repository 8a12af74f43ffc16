"""Whether the shared log is set as it must be, answers, and has all its records."""
