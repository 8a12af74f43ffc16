"""Proposal of a mapping for a user's tables, from the contents of the database and the log, with reasons."""
