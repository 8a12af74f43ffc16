"""Holds of topics: whether operators keep the timers of a topic from delivery, as the log says.

A timer that was due in a held topic is marked: it is set again by a record with TW_HELD, and so is its
delivery after the release (`events`: held, released). Whether it is still held the topic's own records say:

    TopicHeld       the timers that become due wait
    TopicReleased   they are delivered, `per_second` of them each second, or at once if it is 0
    TopicDeleted    none is left

The last one counts. If retention deleted it, a marked timer that waits is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from commitlog.facts.facts import TopicDeleted, TopicHeld, TopicReleased, facts_of
from commitlog.record import Record
from spark_jobs.log.kinds import TOPICS
from spark_jobs.staging.events import Code, Said

HOLDS: Final = pa.schema([
    ("physical_offset", pa.int64()), ("store_ms", pa.int64()), ("topic", pa.string()),
    ("is_held", pa.bool_()), ("per_second", pa.int64()),
])  # fmt: skip


class TopicHold(NamedTuple):
    """Since when a topic is held; else when it was released last, and by when all were to be delivered."""

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
    """Yield what the records of a batch say of holds; the batch has the bodies of the topics' records."""
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
    """Return the hold of one of the shop's topics; `events` has the marks of the timers of topic `number`.

    A release with a pace is done when so many a second would have delivered all that were ever held.
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
