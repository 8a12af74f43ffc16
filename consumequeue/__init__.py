"""Who gets what: the index of each queue, the progress of each group, and filters."""
