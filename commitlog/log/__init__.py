"""The log and its segments: group commit, recovery, retention, and readers of a published log."""
