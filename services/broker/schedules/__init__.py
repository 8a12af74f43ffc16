"""Recurring messages, including cron line parsing, occurrences, and the handling of missed runs."""
