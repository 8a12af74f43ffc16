"""Queries for dead letters, which read page by page and yield to the event loop after each page.

The dead letters of a group are stored in order of arrival. Dead letters are not indexed, so a filtered query
scans all dead letters from the start offset of the query. One request scans at most
`limits.DEAD_LETTERS_EXAMINED_MAX` dead letters. Pages are small, because every message body may have the
maximum size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import NamedTuple

from commitlog import limits
from services.broker.groups.group_values import DeadLetter, DeadLetterPage
from services.broker.spine.errors import GroupNotFound, MessageNotFound
from services.broker.spine.topics import check_group_name
from services.live.live_broker import LiveBroker

FOREVER_MS = 1 << 62


@dataclass(slots=True, frozen=True)
class DeadLetterFilter:
    """A filter for dead letters. A dead letter matches only if it meets all specified conditions.

    `topic` is the original topic of the message. `reason` is a case-insensitive substring of the reason or of
    the first or last error. `from_ms` (inclusive) and `until_ms` (exclusive) limit the time at which the
    message was dead-lettered.
    """

    key: str = ""
    tag: str = ""
    topic: str = ""
    reason: str = ""
    from_ms: int = 0
    until_ms: int = FOREVER_MS

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter matches the filter.

        `key` matches if it equals the message id or one of the message keys.
        """
        message = dead_letter.message
        return (
            self.from_ms <= dead_letter.store_ms < self.until_ms
            and self.key in ("", message.message_id, *message.keys)
            and self.tag in ("", message.tag)
            and self.topic in ("", dead_letter.topic)
            and self.reason.lower()
            in f"{dead_letter.reason}\n{dead_letter.first_error}\n{dead_letter.last_error}".lower()
        )


class DeadLettersCounted(NamedTuple):
    """The result of a count of dead letters.

    `until_ms` is the time in milliseconds up to which dead letters were counted, or None if all were counted.
    """

    total: int
    until_ms: int | None


async def read_pages(
    live: LiveBroker, group: str, end_offset: int = FOREVER_MS, after: int | None = None
) -> AsyncIterator[list[DeadLetter]]:
    """Yield pages of the dead letters of a group below `end_offset`, oldest first."""
    check_group_name(group)
    while live.core.dead_letters.count_open_dead_letters(group).count:
        page = live.query(
            live.core.dead_letters.read_page, group, after, limits.DEAD_LETTERS_EXAMINED_AT_ONCE
        )
        found = [dead_letter for dead_letter in page.dead_letters if dead_letter.queue_offset < end_offset]
        yield found
        after = page.after
        if after is None or len(found) < len(page.dead_letters):
            return
        await asyncio.sleep(0)


def end_offset(live: LiveBroker, group: str) -> int:
    """Return the offset of the next dead letter of a group.

    Raise `IllegalGroup` if the group name is invalid.
    """
    check_group_name(group)
    return live.core.dead_letters.count_open_dead_letters(group).end_offset


def find_dead_letter(live: LiveBroker, group: str, queue_offset: int) -> DeadLetter:
    """Return the dead letter of a group at `queue_offset`. Raise `MessageNotFound` if there is none."""
    is_there = queue_offset < end_offset(live, group)
    page = live.query(live.core.dead_letters.read_page, group, queue_offset - 1, 1)
    found = page.dead_letters if is_there else []
    if not found or found[0].queue_offset != queue_offset:
        raise MessageNotFound(
            f"{group} has no dead letter {queue_offset}: it was sent back or purged, or there never was one."
            f" List them: tidewheel dlq ls {group}"
        )
    return found[0]


def check_group(live: LiveBroker, group: str) -> None:
    """Raise `GroupNotFound` if a group does not exist and has never had dead letters."""
    if not end_offset(live, group):
        live.core.group_views.view_group(group)


def find_return_topics(live: LiveBroker, group: str) -> set[str]:
    """Return the topics to which a group is still subscribed.

    A dead letter can be returned to its original topic only if the group is still subscribed to it. Raise
    `GroupNotFound` if the group does not exist.
    """
    return {queue.topic for queue in live.core.group_views.view_group(group).queues}


def check_return(live: LiveBroker, group: str, topic: str) -> None:
    """Raise `GroupNotFound` if the group is no longer subscribed to `topic`."""
    if topic not in find_return_topics(live, group):
        raise GroupNotFound(
            f"{group} does not receive {topic!r} any more: what goes back there for it alone, nobody gets. "
            "Send it to a topic with --to, or let the group receive again: tidewheel group create."
        )


async def count_dead_letters(
    live: LiveBroker,
    group: str,
    wanted: DeadLetterFilter,
    end_offset: int = FOREVER_MS,
    seconds_max: float = inf,
) -> DeadLettersCounted:
    """Count the matching dead letters, oldest first.

    Stop after about `seconds_max` seconds if dead letters remain.
    """
    count, until_ms, ends = 0, 0, monotonic() + seconds_max
    async for page in read_pages(live, group, end_offset):
        if until_ms and page and monotonic() >= ends:
            return DeadLettersCounted(count, until_ms)
        count += sum(map(wanted.matches, page))
        until_ms = page[-1].store_ms if page else until_ms
    return DeadLettersCounted(count, None)


async def find_dead_letters(
    live: LiveBroker, group: str, wanted: DeadLetterFilter, after: int | None, count_max: int
) -> DeadLetterPage:
    """Return up to `count_max` matching dead letters without message bodies.

    If the scan limit is reached, the page is shorter. The next query continues at the page's cursor.
    """
    found: list[DeadLetter] = []
    looked_at = 0
    async for page in read_pages(live, group, after=after):
        for dead_letter in page:
            if len(found) == count_max or looked_at == limits.DEAD_LETTERS_EXAMINED_MAX:
                return DeadLetterPage(found, after)
            found += [without_body(dead_letter)] if wanted.matches(dead_letter) else []
            after, looked_at = dead_letter.queue_offset, looked_at + 1
    return DeadLetterPage(found, None)


def without_body(dead_letter: DeadLetter) -> DeadLetter:
    """Return a copy of a dead letter without the message body."""
    return replace(dead_letter, message=replace(dead_letter.message, body=b""))
