"""What is wrong with orders whose numbers do not come out, event by event (see `order_facts.is_regular`).

Such orders have several halves or timers, or an end without a beginning, or something is still open. They are
few in a shop where most goes well, so here everything is allowed to cost: half by half, timer by timer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.acknowledged import Places
from spark_jobs.events import CANCELLED, CREATED, PAID, TIMEOUTS, Code
from spark_jobs.order_events import Event, by_order, events_of_orders
from spark_jobs.staging import Staged

EXACT: Final = pa.schema([
    ("order_id", pa.string()),
    ("is_acknowledged", pa.bool_()),
    ("is_redelivered", pa.bool_()),
    ("is_deadline_redelivered", pa.bool_()),
    ("open_half_offset", pa.int64()),
    ("open_half_ms", pa.int64()),
    ("open_half_topic", pa.int8()),
    ("has_open_created", pa.bool_()),
    ("has_open_paid", pa.bool_()),
    ("has_open_cancelled", pa.bool_()),
    ("twice_committed_offset", pa.int64()),
    ("twice_delivered_offset", pa.int64()),
    ("cancelled_timer_delivered", pa.int64()),
    ("open_timer_offset", pa.int64()),
    ("open_timer_due_ms", pa.int64()),
])  # fmt: skip
"""is_acknowledged: order-created, by the acting group; is_redelivered: after its last dead letter it was sent
again and acknowledged; open_half_*: the oldest half without an end; the rest are halves and timers."""

Acknowledged = dict[int, Places]
"""What the acting group of each of the shop's topics has acknowledged."""

_ENDS_OF_HALVES: Final = frozenset((Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.TIMER))
_DELIVERIES: Final = frozenset((Code.DELIVERED, Code.FIRED))
_ENDS_OF_TIMERS: Final = frozenset((*_DELIVERIES, Code.CANCEL, Code.MOVED, Code.REPLACED))
_MESSAGES: Final = frozenset((Code.COMMIT, Code.NORMAL, *_DELIVERIES))


def exact_facts(
    spark: SparkSession, staged: Staged, ids: DataFrame, id_count: int, acknowledged: Acknowledged
) -> DataFrame:
    """A row of `EXACT` for each order of `ids` that has events."""
    events = events_of_orders(spark, staged, ids, id_count)
    return by_order(events, lambda its: of_events(its, acknowledged), EXACT)


def of_events(events: list[Event], acknowledged: Acknowledged) -> dict[str, Any]:
    """What `EXACT` wants to know of one order; `events` in log order."""
    return {
        "is_acknowledged": any(_is_acknowledged(one, acknowledged) for one in _messages(events, CREATED)),
        "is_redelivered": _is_redelivered(events, CREATED, acknowledged),
        "is_deadline_redelivered": _is_redelivered(events, TIMEOUTS, acknowledged),
        **_of_halves(events),
        **_of_timers([event for event in events if event["topic"] == TIMEOUTS]),
    }


def _of_halves(events: list[Event]) -> dict[str, Any]:
    ends = Counter(event["ref"] for event in events if event["code"] in _ENDS_OF_HALVES and event["ref"] >= 0)
    commits = Counter(
        event["ref"] for event in events if event["code"] in (Code.COMMIT, Code.TIMER) and event["ref"] >= 0
    )
    halves = [event for event in events if event["code"] == Code.HALF]
    still_open = [half for half in halves if not ends[half["physical_offset"]]]
    topics = {half["topic"] for half in still_open}
    oldest = min(still_open, key=lambda half: half["physical_offset"], default={})
    return {
        "open_half_offset": oldest.get("physical_offset"),
        "open_half_ms": oldest.get("store_ms"),
        "open_half_topic": oldest.get("topic"),
        "has_open_created": CREATED in topics,
        "has_open_paid": PAID in topics,
        "has_open_cancelled": CANCELLED in topics,
        "twice_committed_offset": _first(half for half, count in commits.items() if count > 1),
    }


def _of_timers(events: list[Event]) -> dict[str, Any]:
    delivered = Counter(event["ref"] for event in events if event["code"] in _DELIVERIES)
    cancelled = {event["ref"] for event in events if event["code"] == Code.CANCEL}
    ended = {event["ref"] for event in events if event["code"] in _ENDS_OF_TIMERS}
    timers = [event for event in events if event["code"] == Code.TIMER]
    still_open = [timer for timer in timers if timer["physical_offset"] not in ended]
    first_due = min(still_open, key=lambda timer: timer["due_ms"], default={})
    return {
        "twice_delivered_offset": _first(timer for timer, count in delivered.items() if count > 1),
        "cancelled_timer_delivered": _first(cancelled & delivered.keys()),
        "open_timer_offset": first_due.get("physical_offset"),
        "open_timer_due_ms": first_due.get("due_ms"),
    }


def _messages(events: list[Event], topic: int) -> list[Event]:
    return [event for event in events if event["topic"] == topic and event["code"] in _MESSAGES]


def _is_acknowledged(event: Event, acknowledged: Acknowledged) -> bool:
    places = acknowledged.get(event["topic"])
    return places is not None and bool(places.has(np.array([event["queue"]]))[0])


def _is_redelivered(events: list[Event], topic: int, acknowledged: Acknowledged) -> bool:
    """Whether a message came after the last dead letter and was acknowledged."""
    dead = [one["physical_offset"] for one in events if one["topic"] == topic and one["code"] == Code.DEAD]
    later = [one for one in _messages(events, topic) if dead and one["physical_offset"] > max(dead)]
    return any(_is_acknowledged(one, acknowledged) for one in later)


def _first(offsets: Iterable[int]) -> int | None:
    return min(offsets, default=None)
