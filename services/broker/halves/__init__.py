"""Half messages of transactions, including check-backs, outcomes, and views for operators."""
