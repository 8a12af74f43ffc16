"""Messages by key or message id: the index says where they may be, their records say whether they are.

Everything that was stored for a key is found: a delayed message as the timer that waits and as what was
delivered, a transaction's message as half and as what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.record import Record
from consumequeue import keyindex
from services.broker.reading import delivery
from services.broker.statistics import Statistics
from services.broker.store import Store
from services.broker.values import Delivery

Wanted = Callable[[Delivery], bool]


class Found(NamedTuple):
    """Messages; `is_cut`: there are more, which are too large for the same answer."""

    messages: list[Delivery]
    is_cut: bool


def anything(one: Delivery) -> bool:
    """Want every message."""
    return True


class Finding:
    """The way to a message that is known by name."""

    def __init__(self, store: Store, statistics: Statistics) -> None:
        self._store = store
        self._statistics = statistics

    def find(self, topic: str, key: str, count_max: int, wanted: Wanted = anything) -> Found:
        """Up to `count_max` durable messages of a topic with that key or message id, newest first.

        Fewer if they are large. Damaged records are left out; raises `StoreDamaged` when it is the index that
        is damaged.
        """
        found: list[Delivery] = []
        body_bytes = 0
        for one in islice(filter(wanted, map(_look, self._records(topic, key))), count_max):
            body_bytes += len(one.message.body)
            if found and body_bytes > limits.LOOK_BYTES_MAX:
                return Found(found, True)
            found.append(one)
        return Found(found, False)

    def _records(self, topic: str, key: str) -> Iterator[Record]:
        log = self._store.log
        for physical_offset in self._store.keys.offsets(topic, key, log.first_offset):
            try:
                record = log.read(physical_offset)
            except StoreDamaged as error:
                self._statistics.unreadable(physical_offset, error.detail)
                continue
            messages = reversed(keyindex.messages_of(record))
            yield from (one for one in messages if keyindex.carries(one, topic, key))


def _look(record: Record) -> Delivery:
    return delivery(record, 0, "", 0)._replace(stored_topic=record.topic)
