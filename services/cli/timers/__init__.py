"""Commands for timers and schedules."""
