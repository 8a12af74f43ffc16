"""Computes the lag of consumer groups, by topic and group, as a sum over the topic's queues.

    min        committed          next                  end
     | all done | done, leased,    | never delivered     |
     |          | waiting          |                     |
                 `---------- lag ----------------------'    minus messages done above `committed`
                                    `------- ready -----'    plus waiting messages

- The *lag* is the number of messages that are not done. The latency of the lag is the age of the oldest
  message that is not done.
- Leased messages are *in flight*.
- Messages that were never delivered, and messages that wait for redelivery, are *ready*.
- The *queueing latency* is the age of the first message that was never delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from services.broker.groups.group_values import GroupView, QueueView
from services.live.live_broker import LiveBroker


def by_topic(groups: list[GroupView]) -> Iterator[tuple[str, str, list[QueueView]]]:
    """Yield (topic, group, queue views) for each topic that a group receives."""
    for group in groups:
        queues: defaultdict[str, list[QueueView]] = defaultdict(list)
        for queue in group.queues:
            queues[queue.topic].append(queue)
        yield from ((topic, group.name, found) for topic, found in queues.items())


def lag(queues: list[QueueView]) -> int:
    """Return the number of messages that are not done."""
    return sum(queue.lag for queue in queues)


def in_flight(queues: list[QueueView]) -> int:
    """Return the number of leased messages."""
    return sum(queue.in_flight for queue in queues)


def ready(queues: list[QueueView]) -> int:
    """Return the number of messages that are ready for delivery."""
    return sum(queue.end_offset - queue.next_offset + queue.waiting for queue in queues)


def next_ms(live: LiveBroker, queue: QueueView) -> int | None:
    """Return the store time of the first message in a queue that was never delivered, or None."""
    if queue.next_offset >= queue.end_offset:
        return None
    if queue.next_offset == queue.committed_offset:
        return queue.oldest_ms
    found = live.query(live.core.finding.read, queue.topic, queue.queue_id, queue.next_offset, 1)
    return found[0].store_ms if found else None


def age_ms(stored_ms: list[int | None], now_ms: int) -> int:
    """Return the age in ms of the oldest of several store times, or 0 without store times."""
    return max((now_ms - one for one in stored_ms if one is not None), default=0)
