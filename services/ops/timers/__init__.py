"""The operations on timers and schedules."""
