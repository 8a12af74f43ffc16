"""Tracks whether the shared log responds, and logs each change.

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
"""The warnings about skipped records, by the name of the counter in `ReadProgress`."""


class LogAnswers:
    """The outcome of the last call to the shared log. The callback `say` writes a log line."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._write_log_line, self._refused_ms = say, 0
        self.refusal = ""
        """The reason why the shared log does not respond, or "" if it responds."""
        self.unconfirmed_candidacy = ""
        """The reason why the last candidacy was not confirmed.

        The reason is reset to "" when any node becomes the leader.
        """
        self.seen = ReadProgress()

    def record_refusal(self, reason: str, now_ms: int) -> None:
        """Record that the shared log does not respond. Log the reason if it has changed."""
        if not self.refusal:
            self._refused_ms = now_ms
        if reason != self.refusal:
            self._write_log_line(
                "warning", "the shared log does not answer: it is asked again", reason=reason
            )
        self.refusal = reason

    def record_response(self, now_ms: int) -> None:
        """Record that the shared log responds. Log a message if the previous call failed."""
        if self.refusal:
            self._write_log_line("info", "the shared log answers again", after_ms=now_ms - self._refused_ms)
        self.refusal = ""

    def record_progress(self, seen: ReadProgress) -> None:
        """Record the read progress. Log a warning if the number of skipped records has increased."""
        for name, sentence in _WARNINGS.items():
            if (count := getattr(seen, name)) > getattr(self.seen, name):
                self._write_log_line("warning", sentence, count=count, next_record=seen.next_record)
        self.seen = seen
