"""Tasks, which apply a verb to many items at a bounded pace."""
