"""Counts, for each group and topic, the messages that were deleted before the group had finished them.

The counts are derived solely from cut records (`services.broker.housekeeping`, "skipped"), so they are the
same after a restart, on a follower, and after a replay. The counts are part of the snapshot, and a count is
removed when the group leaves the topic.

Memory usage is one entry for each subscription that has missed messages, up to `limits.SUBSCRIPTIONS_MAX`
entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from commitlog.facts.facts import Skipped
from commitlog.snapshot import Rows

TOLD_AT_ONCE_MAX: Final = 10
"""The maximum number of losses per cut that are each reported on a separate line of the server log."""
WHAT_HOLDS_LONGER: Final = (
    "A group holds what it has not finished for --group-pin-hours, unless 85 % of the disk is used."
)


class MissedCount(NamedTuple):
    """The number of messages of a topic that a group has missed, and the time of the last loss."""

    message_count: int
    last_ms: int


class MissedMessages:
    """The missed-message counts of all groups."""

    def __init__(self) -> None:
        self._missed: dict[tuple[str, str], MissedCount] = {}

    def find(self, group: str, topic: str) -> MissedCount | None:
        """Return the missed-message count of a group on a topic, or None if no messages were missed."""
        return self._missed.get((group, topic))

    def items(self) -> Iterator[tuple[str, str, MissedCount]]:
        """Yield a (group, topic, count) tuple for each subscription that has missed messages."""
        return ((group, topic, missed) for (group, topic), missed in self._missed.items())

    def add_losses(self, skipped: Iterable[Skipped], store_ms: int) -> None:
        """Add the losses listed in a cut record whose store time is `store_ms`."""
        for group, topic, _, count in skipped:
            before = self._missed.get((group, topic))
            self._missed[group, topic] = MissedCount(
                count + (before.message_count if before else 0), store_ms
            )

    def forget(self, group: str, topic: str) -> None:
        """Remove the count of a group for a topic that the group no longer receives."""
        self._missed.pop((group, topic), None)

    def freeze(self) -> Rows:
        """Return the snapshot state, as one [group, topic, count, last loss] row per count."""
        return Rows([self._missed.copy()], lambda key, missed: [*key, *missed])

    def thaw(self, rows: Iterable[list[Any]]) -> None:
        """Restore the state from a snapshot."""
        self._missed = {(group, topic): MissedCount(count, last_ms) for group, topic, count, last_ms in rows}


def log_lines(missed: dict[tuple[str, str], int], *, is_cut: bool = True) -> list[str]:
    """Return the log lines for a cut: one line for each large loss, and one line for all smaller losses.

    Each line includes a command that displays the details. If `is_cut` is false, the losses were caused by
    the retention of a topic, or by queues that begin at a later offset after they were rebuilt.
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
