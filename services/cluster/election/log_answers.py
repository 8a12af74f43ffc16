"""The availability of the shared log as seen by a node, and warnings when it changes.

This module performs no I/O; all times are in ms, from a monotonic clock.
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
"""The warnings about skipped records, by the field of `ReadProgress` that counts the records."""


class LogAnswers:
    """The outcome of the newest call to the shared log; `say` writes a line to the node's log."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say, self._refused_ms = say, 0
        self.refusal = ""
        """The reason for the current failure, or "" while the shared log answers."""
        self.stood_in_vain = ""
        """The reason why this node can read but has failed to become leader, or "" once any node leads."""
        self.seen = ReadProgress()

    def note_refusal(self, reason: str, now_ms: int) -> None:
        """Record that the shared log does not answer, and log the reason if it has changed."""
        if not self.refusal:
            self._refused_ms = now_ms
        if reason != self.refusal:
            self._say("warning", "the shared log does not answer: it is asked again", reason=reason)
        self.refusal = reason

    def note_answered(self, now_ms: int) -> None:
        """Record that the shared log answers, and log a message if this ends a failure."""
        if self.refusal:
            self._say("info", "the shared log answers again", after_ms=now_ms - self._refused_ms)
        self.refusal = ""

    def note_seen(self, seen: ReadProgress) -> None:
        """Log a warning about records that were skipped since the last call."""
        for name, sentence in _WARNINGS.items():
            if (count := getattr(seen, name)) > getattr(self.seen, name):
                self._say("warning", sentence, count=count, next_record=seen.next_record)
        self.seen = seen
