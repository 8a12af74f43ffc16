"""Recurring messages, including cron line parsing, occurrences, and missed runs."""
