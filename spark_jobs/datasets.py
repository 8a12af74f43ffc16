"""The values of the option `dataset`: the kinds of records, and the topics that hold them.

    dataset    rows                                                     kinds
    records    all records; the default                                 all
    messages   messages that consumers can receive                      normal, commit, delivered, dead letter
    halves     half messages, decided or not                            half
    outcomes   ends of halves, with the half in `half_offset`           commit, timer of a half, outcome
    timers     delayed messages, and operations on them                 timer, verb
    acks       one row per range of acknowledged queue offsets          ack
    groups     settings and members of groups, and leases               group, lease
    damaged    bytes that are no record                                 damage

Damaged bytes have a row in every dataset except `acks`. If topics are read by the queue index, only damage in
the parts that are read has one.

The rows of `acks` have the columns of `ACKS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from commitlog.facts import acks
from commitlog.records.kinds import MESSAGES
from spark_jobs.log.columns.kinds import KINDS, TOPICS
from spark_jobs.log.scan.decode import ALL, TIMESTAMP
from tidewheel.errors import UnknownChoice


@dataclass(frozen=True, slots=True)
class Dataset:
    """The kinds of a dataset's rows, and the topics of their records if these are fixed."""

    kinds: frozenset[str]
    topics: frozenset[str] = ALL
    only_of_halves: bool = False


def _of_system(*kinds: str) -> Dataset:
    return Dataset(frozenset((*kinds, "damage")), frozenset(TOPICS[kind] for kind in kinds))


_TIMER_TOPICS: Final = (TOPICS["timer"], "SCHEDULE_TOPIC_XXXX")

DATASETS: Final = {
    "records": Dataset(frozenset(KINDS)),
    "messages": Dataset(frozenset((*MESSAGES, "damage"))),
    "halves": _of_system("half"),
    "outcomes": Dataset(frozenset(("commit", "timer", "outcome", "damage")), only_of_halves=True),
    "timers": Dataset(frozenset(("timer", "verb", "damage")), frozenset((*_TIMER_TOPICS, TOPICS["verb"]))),
    "acks": _of_system("ack"),
    "groups": _of_system("group", "lease"),
    "damaged": Dataset(frozenset(("damage",))),
}

ACKS: Final = pa.schema([
    ("physical_offset", pa.int64()),
    ("store_time", TIMESTAMP),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("first_offset", pa.int64()),
    ("offset_count", pa.int64()),
])  # fmt: skip
ACK_COLUMNS: Final = ("physical_offset", "store_time", "body", "damage")


def dataset(name: str) -> Dataset:
    """Return the dataset with this name; raise `UnknownChoice`."""
    if name not in DATASETS:
        raise UnknownChoice(f"dataset={name!r} is none of {', '.join(DATASETS)}.")
    return DATASETS[name]


def ranges(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the ranges in acknowledgement records as rows of `schema`, a subset of the columns of `ACKS`."""
    rows = [
        (row["physical_offset"], row["store_time"], group, topic, queue_id, first, count)
        for row in batch.to_pylist()
        if row["damage"] is None
        for group, topic, queue_id, found, is_passed in acks.decode(row["body"])
        if not is_passed
        for first, count in found
    ]
    columns = dict(zip(ACKS.names, zip(*rows, strict=True), strict=True)) if rows else {}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, ()), field.type) for field in schema], schema=schema
    )
