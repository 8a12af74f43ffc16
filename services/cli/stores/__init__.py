"""Commands for stores on disk and for clusters."""
