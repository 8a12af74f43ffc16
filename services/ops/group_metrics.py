"""How far consumer groups are, as RocketMQ 5 measures it: by topic and group, over the topic's queues.

    min        low                fresh                 next
     | all done | done, leased,    | never given out     |
     |          | waiting          |                     |
                 `---------- lag ----------------------'    minus what is done above low
                                    `------- ready -----'    and what waits

- lag: not done; its latency is the age of the oldest of them.
- in flight: leased; ready: could be given out now.
- queueing latency: the age of the first that no receive has come to yet.

The two latencies are served twice: RocketMQ's exporter adds the unit to the name, and dashboards ask for
that.
Cost: a record or two read for each queue of each group that has such messages, at each scrape: 50 us a queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from services.broker.group_values import GroupView, QueueView
from services.live.consumers import ConsumerView
from services.live.live_broker import LiveBroker

Rows = list[tuple[Any, ...]]
Family = tuple[str, str, Rows]
"""The name of a gauge, what it says, and its rows: topic, group, is_retry, is_system, value."""

CONSUME_MODES = {"SIMPLE_CONSUMER": "PULL"}
"""What RocketMQ's proxy calls the kinds of clients that are not PUSH."""


def standings(live: LiveBroker, groups: list[GroupView]) -> Iterator[Family]:
    """Yield every gauge about how far groups are."""
    parts = [*by_topic(groups)]
    now_ms = live.now_ms()

    def rows(measured: Any) -> Rows:
        return [(topic, group, "false", "false", measured(queues)) for topic, group, queues in parts]

    yield "rocketmq_consumer_lag_messages", "Messages not done.", rows(lag)
    yield "rocketmq_consumer_inflight_messages", "Messages leased.", rows(in_flight)
    yield "rocketmq_consumer_ready_messages", "Messages to be given out.", rows(ready)
    oldest = rows(lambda queues: age_ms([one.oldest_ms for one in queues], now_ms))
    fresh = rows(lambda queues: age_ms([fresh_ms(live, one) for one in queues], now_ms))
    for unit in ("", "_milliseconds"):
        yield f"rocketmq_consumer_lag_latency{unit}", "Age of the oldest not done, in ms.", oldest
        yield f"rocketmq_consumer_queueing_latency{unit}", "Age of the first not come to yet, in ms.", fresh


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
    return sum(queue.next_offset - queue.fresh_offset + queue.waiting for queue in queues)


def fresh_ms(live: LiveBroker, queue: QueueView) -> int | None:
    """Return when the first message that was never given out was stored; None if there is none."""
    if queue.fresh_offset >= queue.next_offset:
        return None
    if queue.fresh_offset == queue.low_offset:
        return queue.oldest_ms
    found = live.read(queue.topic, queue.queue_id, queue.fresh_offset, 1)
    return found[0].store_ms if found else None


def age_ms(stored_ms: list[int | None], now_ms: int) -> int:
    """Return the age of the oldest of some moments; 0 if there are none."""
    return max((now_ms - one for one in stored_ms if one is not None), default=0)


def connections(consumers: Iterable[ConsumerView]) -> Counter[tuple[str, str, str, str]]:
    """Return how many consumers there are by group, mode, language and version."""
    return Counter(
        (one.group, CONSUME_MODES.get(one.kind, "PUSH"), one.language, one.version) for one in consumers
    )
