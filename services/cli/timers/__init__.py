"""Timers and schedules: listed, cancelled, moved, fired; one by one and in bulk."""
