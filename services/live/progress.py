"""Whether work goes on: the work that is due and not done, and its age.

    check-backs        halves that are due, and whose topic has no producer that can be asked
    message groups     those with a message that waits, come upon by a receive, and none given out lately
    checkpoint         durable bytes of the log behind the newest one on disk: what a start reads again

Each of them is 0 or small while clients and disk do their part; alert on the ages. A message group that no
receive has come upon is not counted: the lag of its consumer group covers it.

Cost: a look at each message group that is not free, at each scrape, with turns for others in between. Weak
spot: a message group is given out when its lease begins: one whose consumer works for long on one message,
with others behind it, shows as one whose consumer is gone.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from services.broker.broker import Broker
from services.live.pauses import Pauses

STALLED_MS: Final = 45_000
"""How long a message group of which a message waits may be given nothing of before it counts."""
FLIGHTS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """Work that is due and not done; ages in ms, 0 for none."""

    unasked_halves: int
    unasked_age_ms: int
    stalled_message_groups: int
    waiting_message_group_age_ms: int
    """Of the message group of which a message waits and that was given nothing of for the longest time."""
    beyond_checkpoint_bytes: int

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {name: getattr(self, name) for name in self.__slots__}


def measuring(core: Broker, now_ms: int) -> Generator[None, None, Progress]:
    """Return the progress of a broker; yield where the loop should have a turn."""
    unasked, since_ms = core.transactions.unasked, core.transactions.unasked_since_ms()
    count, given_ms = 0, now_ms
    for number, flight in enumerate(core.groups.flights(), 1):
        since = flight.message_groups.waiting_since()
        count += sum(now_ms - one >= STALLED_MS for one in since)
        given_ms = min(given_ms, *since, now_ms)
        if number % FLIGHTS_AT_ONCE == 0 or len(since) > FLIGHTS_AT_ONCE:
            yield
    return Progress(
        unasked_halves=len(unasked),
        unasked_age_ms=0 if since_ms is None else max(0, now_ms - since_ms),
        stalled_message_groups=count,
        waiting_message_group_age_ms=now_ms - given_ms,
        beyond_checkpoint_bytes=core.durable_offset - core.written_offset,
    )


async def measured(core: Broker, now_ms: int) -> Progress:
    """Return the progress of a broker, with pauses."""
    steps, pauses = measuring(core, now_ms), Pauses()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Progress = end.value
            return found
        await pauses.pause()
