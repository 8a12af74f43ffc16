"""Implements delayed messages, with their records, files, delivery, operations, and repair after damage."""
