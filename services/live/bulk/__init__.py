"""Background tasks that apply an operation to many items, with an optional rate limit."""
