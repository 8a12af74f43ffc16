"""Half messages of transactions: storage, check-backs, outcomes, and views."""
