"""Holds of topics in the log: an operator can stop the delivery of a topic's timers.

A timer that becomes due in a held topic is set again by a record with TW_HELD. Its delivery after the release
also has TW_HELD (`events`: held, released). The records of the topic show whether it is still held:

    TopicHeld       timers that become due wait
    TopicReleased   held timers are delivered at `per_second`, or all at once if it is 0
    TopicDeleted    no timer is left

The last record counts. If retention has deleted it, a pending timer with TW_HELD counts as held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from commitlog.facts.facts import TopicDeleted, TopicHeld, TopicReleased, facts_of
from commitlog.records.record import Record
from spark_jobs.log.columns.kinds import TOPICS
from spark_jobs.staging.events import Code, Said

HOLDS: Final = pa.schema([
    ("physical_offset", pa.int64()), ("store_ms", pa.int64()), ("topic", pa.string()),
    ("is_held", pa.bool_()), ("per_second", pa.int64()),
])  # fmt: skip


class TopicHold(NamedTuple):
    """Times of a topic's last hold, in ms since 1970.

    `hold_ms` is set if the topic is held. Otherwise, `released_ms` is the last release or deletion, and
    `release_done_ms` the time by which all held timers should be delivered. All are None without records.
    """

    hold_ms: int | None = None
    released_ms: int | None = None
    release_done_ms: int | None = None


class HoldRow(NamedTuple):
    """A row of `HOLDS`."""

    physical_offset: int
    store_ms: int
    topic: str
    is_held: bool
    per_second: int


def hold_rows(said: Said) -> Iterator[HoldRow]:
    """Yield the holds, releases, and deletions in a batch, which must include the bodies of topic records."""
    offsets, store_ms = said.numbers("physical_offset"), said.numbers("store_ms")
    for place in np.flatnonzero(said.is_named("topic")).tolist():
        at = int(offsets[place]), int(store_ms[place])
        for fact in facts_of(Record(topic=TOPICS["topic"], body=said.batch.column("body")[place].as_py())):
            match fact:
                case TopicHeld():
                    yield HoldRow(*at, fact.name, True, 0)
                case TopicReleased():
                    yield HoldRow(*at, fact.name, False, fact.per_second)
                case TopicDeleted():
                    yield HoldRow(*at, fact.name, False, 0)


def hold_of(holds: pa.Table, topic: str, events: ds.Dataset, number: int) -> TopicHold:
    """Return the hold of one of the shop's topics.

    `holds` has the rows of all topics. `events` has the held events of the topic, which has this `number`. A
    release at `per_second` ends when that rate would have delivered all timers that were ever held.
    """
    rows = holds.filter(pc.field("topic") == topic).sort_by("physical_offset").to_pylist()
    if not topic or not rows:
        return TopicHold()
    last = HoldRow(**rows[-1])
    if last.is_held:
        return TopicHold(hold_ms=last.store_ms)
    done_ms = last.store_ms
    if last.per_second:
        is_mark = (ds.field("code") == int(Code.HELD)) & (ds.field("topic") == number)
        done_ms += events.count_rows(filter=is_mark) * 1_000 // last.per_second
    return TopicHold(released_ms=last.store_ms, release_done_ms=done_ms)
