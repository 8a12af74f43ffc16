"""Delayed messages: their records, files and delivery, the verbs on them, and repair after damage."""
