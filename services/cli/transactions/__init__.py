"""Commands for transactions and outboxes."""
