"""Timelines as evidence for findings: all log records of an order, in log order.

They are made in a separate pass for findings only, because orders that balance need none. An acknowledgement
is a range of places. Bisection among all ranges finds the record that covers the place of a message.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.inputs.mapping import Mapping
from spark_jobs.staging.events import MESSAGE_CODES, QUEUE_BITS, Code
from spark_jobs.staging.order_events import Event, by_order
from spark_jobs.staging.order_facts import DELIVERIES, ENDS_OF_TIMERS
from spark_jobs.staging.staged import SCHEMAS, Staged

TIMELINES_MAX: Final = 100_000
"""Maximum number of findings with a timeline."""

KINDS: Final = {
    Code.HALF: "half",
    Code.COMMIT: "committed",
    Code.ROLLBACK: "rolled back",
    Code.EXPIRED: "expired",
    Code.TIMER: "timer",
    Code.DELIVERED: "delivered",
    Code.FIRED: "fired",
    Code.RELEASED: "delivered",
    Code.CANCEL: "cancelled",
    Code.CALLED_OFF: "cancelled",
    Code.MOVED: "moved",
    Code.HELD: "held",
    Code.REPLACED: "replaced",
    Code.DEAD: "dead letter",
    Code.NORMAL: "sent",
    Code.ASKED: "asked",
}
ACKNOWLEDGED: Final = "acknowledged"

TIMELINES: Final = pa.schema([
    ("order_id", pa.string()),
    ("timeline", pa.list_(pa.struct([
        ("physical_offset", pa.int64()), ("store_ms", pa.int64()), ("kind", pa.string()),
        ("topic", pa.string()), ("note", pa.string()),
    ]))),
])  # fmt: skip
_BY_HOLDS: Final = {
    Code.HELD: "due, and held by an operator",
    Code.RELEASED: "held by an operator until its release",
}
_OF_HALVES: Final = (Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.ASKED)

Acks = dict[tuple[int, int], tuple[int, int]]
"""(topic, place in queue) to (log offset, store time) of the acknowledgement record."""


def timelines(events: DataFrame, staged: Staged, mapping: Mapping) -> DataFrame:
    """Return a row of `TIMELINES` per order of `events` (see `order_events.events_of_orders`)."""
    names, acks = mapping.topics.all, _acks_of(events, staged)
    return by_order(events, lambda its: {"timeline": timeline(its, acks, names)}, TIMELINES)


def timeline(events: list[Event], acks: Acks, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the events of an order and the acknowledgements of its messages, in log order."""
    listed = [_entry(event, names) for event in events]
    for event in events:
        place = event["topic"], event["queue"]
        if event["code"] in MESSAGE_CODES and place in acks:
            offset, store_ms = acks[place]
            note = f"place {event['queue'] & (1 << QUEUE_BITS) - 1} of queue {event['queue'] >> QUEUE_BITS}"
            listed.append(_listed(offset, store_ms, ACKNOWLEDGED, names[event["topic"]], note))
    return sorted(listed, key=lambda entry: (entry["physical_offset"], entry["kind"]))


def _entry(event: Event, names: tuple[str, ...]) -> dict[str, Any]:
    topic = names[event["topic"]] if event["topic"] >= 0 else ""
    kind = KINDS[Code(event["code"])]
    return _listed(event["physical_offset"], event["store_ms"], kind, topic, _note(event))


def _listed(offset: int, store_ms: int, kind: str, topic: str, note: str) -> dict[str, Any]:
    named = {"physical_offset": offset, "store_ms": store_ms, "kind": kind}
    return named | {"topic": topic, "note": note}


def _note(event: Event) -> str:
    """Return the references of a record other than its order: half, timer, due time, and hold."""
    code, ref, due_ms = event["code"], event["ref"], event["due_ms"]
    notes = []
    if code in _OF_HALVES and ref >= 0:
        notes.append(f"the half at {ref}")
    if code in ENDS_OF_TIMERS and ref >= 0:
        notes.append(f"the timer at {ref}" + (", by a call" if code == Code.CALLED_OFF else ""))
    if code in (Code.TIMER, *DELIVERIES) and due_ms >= 0:
        notes.append(f"due {_moment(due_ms)}")
    if code in _BY_HOLDS:
        notes.append(_BY_HOLDS[code])
    return ", ".join(notes)


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError):  # a time outside the range of datetime
        return f"{ms} ms"


def _acks_of(events: DataFrame, staged: Staged) -> Acks:
    """Return the acknowledgement records of the messages among the events."""
    messages = events.filter(F.col("code").isin(*map(int, MESSAGE_CODES))).select("topic", "queue").toArrow()
    found: Acks = {}
    for topic in np.unique(messages["topic"].to_numpy()).tolist():
        mine = messages["queue"].to_numpy()[messages["topic"].to_numpy() == topic]
        found |= {(topic, place): said for place, said in _matched(np.unique(mine), staged, topic)}
    return found


def _matched(places: Any, staged: Staged, topic: int) -> list[tuple[int, tuple[int, int]]]:
    rows = ds.dataset(staged.path("acks"), SCHEMAS["acks"], format="parquet")
    acks = rows.to_table(filter=ds.field("topic") == topic).sort_by("first_place")
    if not len(acks):
        return []
    firsts, ends = acks["first_place"].to_numpy(), acks["end_place"].to_numpy()
    at = np.searchsorted(firsts, places, side="right") - 1
    is_in = (at >= 0) & (places < ends[np.maximum(at, 0)])
    offsets, times = acks["physical_offset"].to_numpy()[at], acks["store_ms"].to_numpy()[at]
    said = zip(offsets[is_in].tolist(), times[is_in].tolist(), strict=True)
    return list(zip(places[is_in].tolist(), said, strict=True))
