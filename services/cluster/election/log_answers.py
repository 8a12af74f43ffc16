"""Tracks whether the shared log is responding, and logs each change.

This module performs no I/O. All times are monotonic clock readings in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.cluster.election.inputs import ReadProgress

_WARNINGS: Final = {
    "foreign_lines": "somebody else writes into the shared log: its lines are stepped over. Let nobody but "
    "the nodes write there",
    "repeated_records": "the shared log has records twice: the second is equal, and was stepped over. Look "
    "at it: tidewheel cluster doctor URL",
}
"""The warnings about skipped records, keyed by `ReadProgress` counter."""


class LogAnswers:
    """The outcome of the last shared log call. `say` writes to the node's log."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._write_log_line, self._refused_ms = say, 0
        self.refusal = ""
        """Why the shared log does not respond, or "" if it does."""
        self.unconfirmed_candidacy = ""
        """Why this node's candidacy was not confirmed. Reset to "" when any node becomes the leader.
        """
        self.seen = ReadProgress()

    def record_refusal(self, reason: str, now_ms: int) -> None:
        """Record that the shared log is not responding. Log the reason if it has changed."""
        if not self.refusal:
            self._refused_ms = now_ms
        if reason != self.refusal:
            self._write_log_line(
                "warning", "the shared log does not answer: it is asked again", reason=reason
            )
        self.refusal = reason

    def record_response(self, now_ms: int) -> None:
        """Record that the shared log is responding. Log a message if it was not responding before."""
        if self.refusal:
            self._write_log_line("info", "the shared log answers again", after_ms=now_ms - self._refused_ms)
        self.refusal = ""

    def record_progress(self, seen: ReadProgress) -> None:
        """Store the read progress. Log a warning if more records have been skipped."""
        for name, sentence in _WARNINGS.items():
            if (count := getattr(seen, name)) > getattr(self.seen, name):
                self._write_log_line("warning", sentence, count=count, next_record=seen.next_record)
        self.seen = seen
