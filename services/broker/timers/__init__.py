"""Implements delayed messages: their records, files, delivery, operations, and repair after damage."""
