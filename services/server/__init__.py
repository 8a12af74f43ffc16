"""Long-running processes: the broker and the nightly audit."""
