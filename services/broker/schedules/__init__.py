"""Recurring messages: cron lines, occurrences, and missed runs."""
