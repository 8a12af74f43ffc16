"""Parses the ranges of many acknowledgement records at once (format: `commitlog.facts.acks`).

All bodies are parsed in parallel: the first entry of each body, then the second, until no body has another
one. Only entries of the acting groups count. They are recognized by comparing bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.facts import acks
from spark_jobs.log.columns.ragged import Integers, Ranges, numbers_at
from spark_jobs.staging.events import QUEUE_BITS

_RANGE_BYTES: Final = 12
_NAMELESS_BYTES: Final = 6
_COUNT_BYTES: Final = 8
"""Position of the count within a range. The first offset precedes it."""

_NAMES: Final = ("topic", "first_place", "end_place", "physical_offset", "store_ms")


def acks_table(
    records: Sequence[pa.RecordBatch], acting: Mapping[str, str], numbers: Mapping[str, int]
) -> pa.Table:
    """Return a row for each range acknowledged by the acting group of its topic, in log order.

    The columns are topic (its number), first_place, end_place (exclusive), physical_offset, and store_ms.
    `records` have the columns body, physical_offset, and store_ms. `acting` maps topics to groups, and
    `numbers` maps topics to their numbers. Raise `ValueError` for a body that ends within an entry.
    """
    if not records:
        return pa.table({})
    rows = pa.Table.from_batches(records).combine_chunks()
    bodies = Ranges.of(rows["body"].chunk(0))
    heads = {numbers[topic]: acks.text(group) + acks.text(topic) for topic, group in acting.items()}
    record, topic, queue_id, starts, counts = _acknowledged(bodies, heads)
    entry = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(entry)) - (np.cumsum(counts) - counts)[entry]
    places = starts[entry] + nth * _RANGE_BYTES
    first = (queue_id[entry] << QUEUE_BITS) | numbers_at(bodies.data, places, ">i8")
    end = first + numbers_at(bodies.data, places + _COUNT_BYTES, ">u4")
    said_at = (rows[name].to_numpy()[record[entry]] for name in _NAMES[3:])
    return pa.table([topic[entry], first, end, *said_at], _NAMES)


def _acknowledged(bodies: Ranges, heads: Mapping[int, bytes]) -> Integers:
    """Return the entries of the acting groups as an array of shape (5, entries), sorted by body.

    Its rows are: index of the body, number of the topic, queue ID, start of the ranges in `data`, count of
    the ranges. `heads` maps the numbers of topics to the encoded group and topic. Skipped entries, which
    follow an entry without names and ranges, are left out. Raise `ValueError` for a body that ends within an
    entry.
    """
    found = [np.zeros((5, 0), np.int64)]
    left = np.flatnonzero(bodies.lengths > 0)
    places = np.zeros(len(left), np.int64)
    is_passed = np.zeros(len(left), bool)
    while len(left):
        some = bodies.chosen(left)
        starts = some.starts + places
        topics_at = starts + 1 + numbers_at(some.data, starts, "u1")
        queues_at = topics_at + 1 + numbers_at(some.data, topics_at, "u1")
        queue_ids, counts = (numbers_at(some.data, queues_at + after, ">u2").astype(int) for after in (0, 2))
        ranges_at = queues_at + 4
        topics = np.full(len(left), -1)
        for number, head in heads.items():
            topics[some.have_at(places, head) & ~is_passed] = number
        entries = np.array([left, topics, queue_ids, ranges_at, counts])
        found.append(entries[:, topics >= 0])
        places = ranges_at + counts * _RANGE_BYTES - some.starts
        if (places > some.lengths).any():
            raise ValueError("acknowledgements that end within an entry")
        is_passed = (ranges_at - starts == _NAMELESS_BYTES) & (counts == 0)
        goes_on = places < some.lengths
        left, places, is_passed = left[goes_on], places[goes_on], is_passed[goes_on]
    joined = np.concatenate(found, axis=1)
    return joined[:, np.argsort(joined[0], kind="stable")]
