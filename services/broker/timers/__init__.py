"""Delayed messages: timer records, timer files, delivery, operations, and repair after damage."""
