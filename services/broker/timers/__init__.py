"""Implements delayed messages: records, files, delivery, verbs, and repair after damage."""
