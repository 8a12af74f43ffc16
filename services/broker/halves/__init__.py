"""Half messages, including transaction check-backs, outcomes, and operator views."""
