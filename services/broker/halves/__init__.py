"""Half messages of transactions: stored, checked back, ended, viewed."""
