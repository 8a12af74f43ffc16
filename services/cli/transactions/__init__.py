"""Transactions and outboxes: looked at, asked after, ended by hand."""
