"""Half messages, including transaction check-backs, transaction outcomes, and views for operators."""
