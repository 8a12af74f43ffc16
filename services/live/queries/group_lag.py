"""Computes the lag of each consumer group on each topic as the sum over the queues of the topic.

    min        committed          next                  end
     | finished | finished, leased,| not yet delivered   |
     |          | or waiting       |                     |
                 `---------- lag ----------------------'    minus finished messages above `committed`
                                    `------- ready -----'    plus waiting messages

- The *lag* is the number of unfinished messages, and the *lag latency* is the age of the oldest unfinished
  message.
- Leased messages are *in flight*.
- Messages that have not yet been delivered or that await redelivery are *ready*.
- The *queueing latency* is the age of the oldest message that has not yet been delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from services.broker.groups.group_values import GroupView, QueueView
from services.live.live_broker import LiveBroker


def by_topic(groups: list[GroupView]) -> Iterator[tuple[str, str, list[QueueView]]]:
    """Yield (topic, group, queue views) for each group and each topic that it receives."""
    for group in groups:
        queues: defaultdict[str, list[QueueView]] = defaultdict(list)
        for queue in group.queues:
            queues[queue.topic].append(queue)
        yield from ((topic, group.name, found) for topic, found in queues.items())


def lag(queues: list[QueueView]) -> int:
    """Return the number of unfinished messages in the queues."""
    return sum(queue.lag for queue in queues)


def in_flight(queues: list[QueueView]) -> int:
    """Return the number of leased messages in the queues."""
    return sum(queue.in_flight for queue in queues)


def ready(queues: list[QueueView]) -> int:
    """Return the number of messages in the queues that are ready for delivery."""
    return sum(queue.end_offset - queue.next_offset + queue.waiting for queue in queues)


def next_ms(live: LiveBroker, queue: QueueView) -> int | None:
    """Return the time at which the first undelivered message of a queue was stored, or None."""
    if queue.next_offset >= queue.end_offset:
        return None
    if queue.next_offset == queue.committed_offset:
        return queue.oldest_ms
    found = live.query(live.core.finding.read, queue.topic, queue.queue_id, queue.next_offset, 1)
    return found[0].store_ms if found else None


def age_ms(stored_ms: list[int | None], now_ms: int) -> int:
    """Return the time since the earliest of `stored_ms` in milliseconds, or 0 if there is none."""
    return max((now_ms - one for one in stored_ms if one is not None), default=0)
