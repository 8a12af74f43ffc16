"""Counts the messages of a topic that retention deleted before a group had finished them.

The counts are derived only from the records of cuts (`services.broker.housekeeping`, "skipped"), so the
counts are equal after a start, on a follower, and after a replay. The counts are part of the snapshot, and a
count is removed when the group leaves the topic.

Cost: the table has one entry for each subscription that has missed messages, and at most
`limits.SUBSCRIPTIONS_MAX` entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from commitlog.facts.facts import Skipped
from commitlog.snapshot import Rows

TOLD_AT_ONCE_MAX: Final = 10
"""The maximum number of losses per cut that have their own line in the server log."""
WHAT_HOLDS_LONGER: Final = (
    "A group holds what it has not finished for --group-pin-hours, unless 85 % of the disk is used."
)


class MissedCount(NamedTuple):
    """The number of messages of a topic that a group has missed, and the store time of the last loss."""

    message_count: int
    last_ms: int


class MissedMessages:
    """The counts of missed messages for all groups."""

    def __init__(self) -> None:
        self._missed: dict[tuple[str, str], MissedCount] = {}

    def find(self, group: str, topic: str) -> MissedCount | None:
        """Return the count of messages of a topic that a group has missed, or None if there are none."""
        return self._missed.get((group, topic))

    def items(self) -> Iterator[tuple[str, str, MissedCount]]:
        """Yield (group, topic, count) for each subscription that has missed messages."""
        return ((group, topic, missed) for (group, topic), missed in self._missed.items())

    def add_losses(self, skipped: Iterable[Skipped], store_ms: int) -> None:
        """Add the losses in a cut record with the store time `store_ms`."""
        for group, topic, _, count in skipped:
            before = self._missed.get((group, topic))
            self._missed[group, topic] = MissedCount(
                count + (before.message_count if before else 0), store_ms
            )

    def forget(self, group: str, topic: str) -> None:
        """Remove the count of a group that no longer receives a topic."""
        self._missed.pop((group, topic), None)

    def freeze(self) -> Rows:
        """Return the snapshot part: a row [group, topic, count, time of the last cut] for each count."""
        return Rows([self._missed.copy()], lambda key, missed: [*key, *missed])

    def thaw(self, rows: Iterable[list[Any]]) -> None:
        """Restore the state from its part of a snapshot."""
        self._missed = {(group, topic): MissedCount(count, last_ms) for group, topic, count, last_ms in rows}


def log_lines(missed: dict[tuple[str, str], int], *, is_cut: bool = True) -> list[str]:
    """Return the log lines about one cut, with one line for each large loss and one for all smaller losses.

    Each line contains the command that shows details. If `is_cut` is false, the losses are due to the
    retention of a topic, or to rebuilt queues that begin at a later offset.
    """
    who = "Retention deleted" if is_cut else "The retention of a topic, or damage of the log, took"
    holding = WHAT_HOLDS_LONGER if is_cut else "The retention of a topic (topic show) waits for no group."
    if not missed:
        return []
    most = heapq.nlargest(TOLD_AT_ONCE_MAX, missed.items(), key=lambda one: one[1])
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
