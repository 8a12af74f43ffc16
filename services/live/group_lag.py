"""Lag of consumer groups by topic and group, summed over the topic's queues.

    min        committed          next                  end
     | all done | done, leased,    | never delivered     |
     |          | waiting          |                     |
                 `---------- lag ----------------------'    minus messages done above `committed`
                                    `------- ready -----'    plus waiting messages

- lag: messages that are not done. The latency of the lag is the age of the oldest of these messages.
- in flight: leased messages.
- ready: messages that can be delivered now.
- queueing latency: the age of the first message that was never delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from services.broker.groups.group_values import GroupView, QueueView
from services.live.live_broker import LiveBroker


def by_topic(groups: list[GroupView]) -> Iterator[tuple[str, str, list[QueueView]]]:
    """Yield a topic, a group, and the group's queues of the topic."""
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
    """Return the number of messages ready for delivery."""
    return sum(queue.end_offset - queue.next_offset + queue.waiting for queue in queues)


def next_ms(live: LiveBroker, queue: QueueView) -> int | None:
    """Return the store time of the first message that was never delivered, or None without such a message."""
    if queue.next_offset >= queue.end_offset:
        return None
    if queue.next_offset == queue.committed_offset:
        return queue.oldest_ms
    found = live.query(live.core.finding.read, queue.topic, queue.queue_id, queue.next_offset, 1)
    return found[0].store_ms if found else None


def age_ms(stored_ms: list[int | None], now_ms: int) -> int:
    """Return the age of the oldest time in ms, or 0 if there are no times."""
    return max((now_ms - one for one in stored_ms if one is not None), default=0)
