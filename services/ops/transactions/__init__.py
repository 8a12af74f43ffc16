"""The operations on transactions, for producers and for operators."""
