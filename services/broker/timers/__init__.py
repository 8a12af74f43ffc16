"""Delayed messages: their records, the files that they wait in, delivery, verbs, and what damage takes."""
