"""Counts of the messages that were deleted before a group had finished them.

The counts are derived only from the member "skipped" of `LogCut` records (`services.broker.housekeeping`),
and are therefore the same after a restart, on a follower, and after a replay. Snapshots include the counts.
When a group leaves a topic, its count for the topic is removed.

Memory usage is one entry per subscription with missed messages, up to `limits.SUBSCRIPTIONS_MAX` entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from commitlog.facts.facts import Skipped
from commitlog.snapshots.snapshot import Rows

LOG_LINES_MAX: Final = 10
"""Maximum number of losses per cut that are logged in separate lines."""
RETENTION_ADVICE: Final = (
    "A group holds what it has not finished for --group-pin-hours, unless 85 % of the disk is used."
)


class MissedCount(NamedTuple):
    """The number of messages that a group has missed on a topic, and the time of the last loss."""

    message_count: int
    last_ms: int


class MissedMessages:
    """The missed-message counts of all groups."""

    def __init__(self) -> None:
        self._missed: dict[tuple[str, str], MissedCount] = {}

    def find(self, group: str, topic: str) -> MissedCount | None:
        """Return the count of missed messages of a group on a topic, or None."""
        return self._missed.get((group, topic))

    def items(self) -> Iterator[tuple[str, str, MissedCount]]:
        """Yield (group, topic, count) for each subscription with missed messages."""
        return ((group, topic, missed) for (group, topic), missed in self._missed.items())

    def add_losses(self, skipped: Iterable[Skipped], store_ms: int) -> None:
        """Add the losses in a `LogCut` record that was stored at `store_ms`."""
        for group, topic, _, count in skipped:
            before = self._missed.get((group, topic))
            self._missed[group, topic] = MissedCount(
                count + (before.message_count if before else 0), store_ms
            )

    def forget(self, group: str, topic: str) -> None:
        """Remove the count of a group for a topic that the group no longer receives."""
        self._missed.pop((group, topic), None)

    def freeze(self) -> Rows:
        """Return the counts for a snapshot, as rows of [group, topic, count, time of the last loss]."""
        return Rows([self._missed.copy()], lambda key, missed: [*key, *missed])

    def thaw(self, rows: Iterable[list[Any]]) -> None:
        """Restore the state from a snapshot."""
        self._missed = {(group, topic): MissedCount(count, last_ms) for group, topic, count, last_ms in rows}


def log_lines(missed: dict[tuple[str, str], int], *, is_cut: bool = True) -> list[str]:
    """Return one log line for each of the `LOG_LINES_MAX` largest losses, and one line for all others.

    Each line includes a command that shows the details. If `is_cut` is false, the cause of the losses is the
    retention of a topic, or a rebuild that advanced the first offsets of queues.
    """
    who = "Retention deleted" if is_cut else "The retention of a topic, or damage of the log, took"
    holding = RETENTION_ADVICE if is_cut else "The retention of a topic (topic show) waits for no group."
    if not missed:
        return []
    most = heapq.nlargest(LOG_LINES_MAX, missed.items(), key=lambda one: one[1])
    told = [
        f"{who} {count:,} messages of topic {topic} that group {group} had not finished. "
        f"{holding} See: tidewheel group show {group}"
        for (group, topic), count in most
    ]
    if rest := len(missed) - len(most):
        count = sum(missed.values()) - sum(count for _, count in most)
        told.append(
            f"{who} {count:,} messages in all that {rest:,} more subscriptions of groups to "
            "topics had not finished. See: tidewheel group ls"
        )
    return told
