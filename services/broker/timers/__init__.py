"""Delayed messages: records, files, delivery, timer verbs, and repair after damage."""
