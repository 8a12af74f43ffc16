"""Measures the amount and age of the overdue work of a broker.

    check-backs        half messages with a due check-back whose topic has no producer
    message groups     groups with a waiting message that a receive has scanned, but without a recent delivery
    checkpoint         durable log bytes after the newest checkpoint on disk, which are replayed at startup

All values remain at or near zero while the clients and the disk are healthy. Alerts should use the ages.
Message groups that no receive has scanned are not counted, because their messages are included in the lag of
the consumer group.

Cost: each metrics scrape examines all message groups with leased or waiting messages, with regular pauses.
Limitation: the time without a delivery is measured from the latest lease. A message group therefore also
counts as stalled if a consumer processes one message for a long time while others are waiting.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from services.broker.broker import Broker
from services.live.pauses import Pauses

STALLED_MS: Final = 45_000
"""Time without a delivery after which a message group with waiting messages is stalled, in milliseconds."""
FLIGHTS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """The amount and age of overdue work. An age is in milliseconds, or 0 if no work is overdue."""

    unasked_halves: int
    unasked_age_ms: int
    stalled_message_groups: int
    waiting_message_group_age_ms: int
    """Longest time without a delivery among message groups with waiting messages."""
    beyond_checkpoint_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def measure_progress(core: Broker, now_ms: int) -> Generator[None, None, Progress]:
    """Measure the overdue work of a broker. Yield wherever the caller may pause."""
    waiting, since_ms = (
        core.transactions.waiting_check_backs,
        core.transactions.oldest_waiting_check_back_ms(),
    )
    count, given_ms = 0, now_ms
    for number, flight in enumerate(core.groups.all_in_flight_states(), 1):
        since = flight.message_groups.waiting_since()
        count += sum(now_ms - one >= STALLED_MS for one in since)
        given_ms = min(given_ms, *since, now_ms)
        if number % FLIGHTS_AT_ONCE == 0 or len(since) > FLIGHTS_AT_ONCE:
            yield
    return Progress(
        unasked_halves=len(waiting),
        unasked_age_ms=0 if since_ms is None else max(0, now_ms - since_ms),
        stalled_message_groups=count,
        waiting_message_group_age_ms=now_ms - given_ms,
        beyond_checkpoint_bytes=core.durable_offset - core.written_offset,
    )


async def measure_with_pauses(core: Broker, now_ms: int) -> Progress:
    """Measure the overdue work of a broker, with pauses for other event loop tasks."""
    steps, pauses = measure_progress(core, now_ms), Pauses()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Progress = end.value
            return found
        await pauses.pause()
