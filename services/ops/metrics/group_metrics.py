"""The lag of consumer groups as metrics, defined as in RocketMQ 5 (`services.live.queries.group_lag`).

The two latencies are exported under two names each, because the exporter of RocketMQ adds the unit to the
name, and dashboards use the names with the unit.

Cost: at each scrape, one or two records are read for each queue of each group with lag, which takes 50 us for
each queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from services.broker.spine.errors import GroupNotFound
from services.live.clients.consumers import ConsumerView
from services.live.live_broker import LiveBroker
from services.live.queries.group_lag import age_ms, by_topic, in_flight, lag, next_ms, ready

Rows = list[tuple[Any, ...]]
Family = tuple[str, str, Rows]
"""The name of a gauge, what it says, and its rows: topic, group, is_retry, is_system, value."""

GROUPS_AT_ONCE = 20
CONSUME_MODES = {"SIMPLE_CONSUMER": "PULL"}
"""What RocketMQ's proxy calls the kinds of clients that are not PUSH."""


def group_families(live: LiveBroker, names: Iterable[str]) -> Iterator[Family | None]:
    """Yield the gauges of the lag of groups. Yield None where the event loop may process other calls."""
    now_ms = live.now_ms()
    counts: tuple[Rows, Rows, Rows] = ([], [], [])
    oldest: Rows = []
    fresh: Rows = []
    for name in list(names):
        with suppress(GroupNotFound):
            for topic, group, queues in by_topic([live.query(live.core.group_views.view_group, name)]):
                labels = (topic, group, "false", "false")
                for rows, measured in zip(counts, (lag, in_flight, ready), strict=True):
                    rows.append((*labels, measured(queues)))
                oldest.append((*labels, age_ms([one.oldest_ms for one in queues], now_ms)))
                fresh.append((*labels, age_ms([next_ms(live, one) for one in queues], now_ms)))
        if len(fresh) % GROUPS_AT_ONCE == 0:
            yield None
    yield "rocketmq_consumer_lag_messages", "Messages not done.", counts[0]
    yield "rocketmq_consumer_inflight_messages", "Messages leased.", counts[1]
    yield "rocketmq_consumer_ready_messages", "Messages to be given out.", counts[2]
    for unit in ("", "_milliseconds"):
        yield f"rocketmq_consumer_lag_latency{unit}", "Age of the oldest not done, in ms.", oldest
        yield f"rocketmq_consumer_queueing_latency{unit}", "Age of the first not come to yet, in ms.", fresh


def labels_of(consumer: ConsumerView) -> tuple[str, str, str, str]:
    """Return the group, mode, language and version of a consumer."""
    mode = CONSUME_MODES.get(consumer.kind, "PUSH")
    return consumer.group, mode, consumer.language, consumer.version
