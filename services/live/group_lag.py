"""How far consumer groups are, by topic and group, over the topic's queues.

    min        committed          next                  end
     | all done | done, leased,    | never given out     |
     |          | waiting          |                     |
                 `---------- lag ----------------------'    minus what is done above `committed`
                                    `------- ready -----'    and what waits

- lag: not done; its latency is the age of the oldest of them.
- in flight: leased; ready: could be given out now.
- queueing latency: the age of the first that no receive has come to yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from services.broker.groups.group_values import GroupView, QueueView
from services.live.live_broker import LiveBroker


def by_topic(groups: list[GroupView]) -> Iterator[tuple[str, str, list[QueueView]]]:
    """Yield topic, group, and the group's queues of the topic."""
    for group in groups:
        queues: defaultdict[str, list[QueueView]] = defaultdict(list)
        for queue in group.queues:
            queues[queue.topic].append(queue)
        yield from ((topic, group.name, found) for topic, found in queues.items())


def lag(queues: list[QueueView]) -> int:
    """Return how many messages are not done."""
    return sum(queue.lag for queue in queues)


def in_flight(queues: list[QueueView]) -> int:
    """Return how many messages are leased."""
    return sum(queue.in_flight for queue in queues)


def ready(queues: list[QueueView]) -> int:
    """Return how many messages wait to be given out."""
    return sum(queue.end_offset - queue.next_offset + queue.waiting for queue in queues)


def next_ms(live: LiveBroker, queue: QueueView) -> int | None:
    """Return when the first message that was never given out was stored; None if there is none."""
    if queue.next_offset >= queue.end_offset:
        return None
    if queue.next_offset == queue.committed_offset:
        return queue.oldest_ms
    found = live.query(live.core.finding.read, queue.topic, queue.queue_id, queue.next_offset, 1)
    return found[0].store_ms if found else None


def age_ms(stored_ms: list[int | None], now_ms: int) -> int:
    """Return the age of the oldest of some moments; 0 if there are none."""
    return max((now_ms - one for one in stored_ms if one is not None), default=0)
