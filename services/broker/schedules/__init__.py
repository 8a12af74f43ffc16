"""Recurring messages, with cron lines, occurrences, and missed runs."""
