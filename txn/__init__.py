"""Transactions: a message that is delivered exactly when a database transaction commits."""
