"""Recurring messages: cron lines, occurrences, missed runs."""
