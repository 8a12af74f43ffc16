"""Collects the events, facts, and counts of one part of the log, batch by batch.

Numbers are kept as columns until the end of the part. Its orders are then numbered, and all columns become
tables (see `staged`).

Rules:
- The order (or push) of a record is its first key. For a message of a schedule it is `<schedule id>@<time>`.
- IDs are kept as text per batch, and numbered once at the end of the part, by a dictionary of the whole part.
- All records are counted by name, topic, and minute or second (see `time_buckets`). Single events are kept
  only of the shop's topics, of check-backs, and of cancels in any record.

Cost: about 150 bytes of memory per event, so 200 MB for a part of 256 MB of log.

Limitation: a message whose key is no order ID creates an order that the database does not have. Only the
first `UNREADABLE_MAX` unreadable messages of a part are kept as samples. All are counted.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.epochs import begun_by
from commitlog.records.kinds import EPOCH_TOPIC
from commitlog.records.record import Record
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.staging.ack_records import acks_table
from spark_jobs.staging.bodies import readable
from spark_jobs.staging.events import FIELDS, MESSAGES, NAMES, PUSHES, Events, Said, Words, events_of, present
from spark_jobs.staging.holds import HOLDS, HoldRow, hold_rows
from spark_jobs.staging.late_settings import LateSettings
from spark_jobs.staging.order_facts import ORDER_FACTS, PUSH_FACTS, Fact, facts_of, schema
from spark_jobs.staging.time_buckets import bucket_starts

UNREADABLE_MAX: Final = 20
"""Maximum number of unreadable messages of a part that are kept as samples."""
UNREADABLE_CHARACTERS: Final = 120
"""Characters of the body in such a sample."""

_SCHEDULE_PREFIX: Final = "pushes:"


class Tally:
    """Collected data of one part of the log."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._topics = {name: number for number, name in enumerate(mapping.topics.all) if name}
        self._words = Words()
        self._events: list[Events] = []
        self._ids: list[pa.StringArray] = []
        self._counted: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self._late_settings = LateSettings()
        self._grouped: list[pa.Table] = []
        self._acks: list[pa.RecordBatch] = []
        self._ends: dict[str, int] = {}
        self._unreadable: list[dict[str, Any]] = []
        self._damaged: list[dict[str, Any]] = []
        self._epochs: list[dict[str, Any]] = []
        self._holds: list[HoldRow] = []
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of records, or of damage."""
        if batch.column("damage").null_count < len(batch):
            damaged = batch.select(["physical_offset", "record_bytes", "damage"])
            self._damaged += damaged.rename_columns(["physical_offset", "record_bytes", "why"]).to_pylist()
            return
        said = Said(batch, self._mapping.topics, self._words)
        ids = _ids(batch)
        self._events += events_of(said, self.records)
        self._ids.append(_only(ids, said.is_event))
        self.records += len(batch)
        self._count(said, ids)
        self._add_lateness(said)
        self._add_ends(said)
        self._add_acks(said)
        self._add_epochs(said)
        self._holds += hold_rows(said)
        self._add_grouped(said, ids)

    def tables(self, first_row: int) -> dict[str, pa.Table]:
        """Return the tables by data set. `first_row` is the row number of the part's first order."""
        return {
            **self._of_events(first_row),
            "acks": acks_table(self._acks, self._mapping.consumers, self._topics),
            "grouped": _joined(self._grouped),
            "counts": self._counts(),
            "lateness": self._lateness(),
            **self._late_settings.tables(self._words.names),
            "ends": pa.table({"how": list(self._ends), "timers": list(self._ends.values())}),
            "unreadable": pa.Table.from_pylist(self._unreadable),
            "damaged": pa.Table.from_pylist(self._damaged),
            "epochs": pa.Table.from_pylist(self._epochs),
            "holds": pa.Table.from_pylist([one._asdict() for one in self._holds], HOLDS),
        }

    def _of_events(self, first_row: int) -> dict[str, pa.Table]:
        if not self._events:
            return {}
        events = Events.joined(self._events)
        indexed = pa.concat_arrays(self._ids).dictionary_encode()
        rows = np.append(indexed.indices.fill_null(-1), -1)[events.order]
        has_order = rows >= 0
        tables = {}
        if not has_order.all():
            unnamed = events.chosen(~has_order)
            tables["unnamed"] = _events_table(unnamed, pa.nulls(len(unnamed), pa.int64()))
            events, rows = events.chosen(has_order), rows[has_order]
        tables["events"] = _events_table(events, pa.array(rows + np.int64(first_row)))
        for name, facts, kept in (
            ("facts", ORDER_FACTS, events.topic != PUSHES),
            ("pushes", PUSH_FACTS, events.topic == PUSHES),
        ):
            tables[name] = _facts_table(events, rows, kept, indexed.dictionary, first_row, facts)
        return tables

    def _count(self, said: Said, ids: pa.StringArray) -> None:
        """Count records by name, topic, and minute or second. Keep the first unreadable messages."""
        is_unreadable, lacks_key = self._unreadable_messages(said, ids)
        store_ms, offsets = said.numbers("store_ms"), said.numbers("physical_offset")
        starts, start = np.unique(bucket_starts(store_ms), return_inverse=True)
        groups, group = _numbered(start, said.about + 1, said.name)
        count = len(groups[0])
        first_ms, last_ms, first_offset = (np.full(count, empty) for empty in (_MAX, _MIN, _MAX))
        np.minimum.at(first_ms, group, store_ms)
        np.maximum.at(last_ms, group, store_ms)
        np.minimum.at(first_offset, group[is_unreadable], offsets[is_unreadable])
        self._counted.append(pa.table({
            "name": groups[2], "about": groups[1] - 1, "minute_ms": starts[groups[0]],
            "records": np.bincount(group, minlength=count),
            "record_bytes": np.bincount(group, said.numbers("record_bytes"), count).astype(np.int64),
            "first_ms": first_ms, "last_ms": last_ms,
            "unreadable": np.bincount(group[is_unreadable], minlength=count),
            "unreadable_offset": pa.array(first_offset, mask=first_offset == _MAX),
            "without_key": np.bincount(group[lacks_key], minlength=count),
        }))  # fmt: skip

    def _unreadable_messages(self, said: Said, ids: pa.StringArray) -> tuple[Flags, Flags]:
        """Return which messages of the shop's topics are unreadable, and which ones lack a key.

        A message is unreadable if its body does not have the format of its topic (`bodies`). Keep the first
        ones as samples.
        """
        is_message = said.is_named(*MESSAGES) & (said.shop_topic >= 0)
        topic = np.where(is_message, said.shop_topic, -1)
        named = _named_in_bodies(said.batch, ids)
        unreadable = is_message & ~readable(said.batch.column("body"), named, topic, self._mapping.bodies)
        lacks_key = is_message & ~present(ids)
        for place in np.flatnonzero(unreadable)[: UNREADABLE_MAX - len(self._unreadable)].tolist():
            self._unreadable.append(_shown(said, place))
        return unreadable, lacks_key

    def _counts(self) -> pa.Table:
        if not self._counted:
            return pa.table({})
        rows = _by_span(pa.concat_tables(self._counted))
        whole = rows.group_by(["name", "about", "minute_ms"], use_threads=False).aggregate(list(_COUNTED))
        columns = [_texts(NAMES, whole["name"]), _texts(self._words.names, whole["about"])]
        numbers = [whole[f"{name}_{how}"] for name, how in _COUNTED]
        return pa.table([*columns, whole["minute_ms"], *numbers], _COUNTS)

    def _add_lateness(self, said: Said) -> None:
        """Collect the lateness (ms) of the deliveries of timers and of the runs of schedules."""
        self._late_settings.add(said)
        delivered = np.flatnonzero(said.is_named("delivered") & (said.numbers("due_ms") >= 0))
        due_ms, runs = _runs(said)
        for recurs, places, since_ms in (
            (False, delivered, self._late_settings.since_ms(said, delivered)),
            (True, runs, due_ms[runs]),
        ):
            if len(places):
                store_ms = said.numbers("store_ms")[places]
                columns = {"about": said.about[places], "minute_ms": bucket_starts(store_ms)}
                columns |= {"recurs": np.full(len(places), recurs), "late_ms": store_ms - since_ms}
                self._late.append(pa.table(columns))

    def _lateness(self) -> pa.Table:
        if not self._late:
            return pa.table({})
        by = ["about", "minute_ms", "recurs", "late_ms"]
        rows = _by_span(pa.concat_tables(self._late))
        whole = rows.group_by(by, use_threads=False).aggregate([([], "count_all")])
        return pa.table({
            "topic": _texts(self._words.names, whole["about"]), "minute_ms": whole["minute_ms"],
            "recurs": whole["recurs"], "late_ms": whole["late_ms"], "deliveries": whole["count_all"],
        })  # fmt: skip

    def _add_ends(self, said: Said) -> None:
        counted = {
            "delivered": said.is_named("delivered"),
            "fired": said.is_named("fired"),
            "released": said.is_named("released"),
            "cancelled": said.is_named("verb") | said.is_carrying,
            "unreadable": said.is_named("unreadable"),
            "moved": said.is_moving & ~said.is_holding,
            "held": said.is_holding,
            "replaced": said.is_replacing & ~said.is_moving,
        }
        for how, flags in counted.items():
            if count := int(np.count_nonzero(flags)):
                self._ends[how] = self._ends.get(how, 0) + count

    def _add_acks(self, said: Said) -> None:
        places = np.flatnonzero(said.is_named("ack"))
        if len(places):
            self._acks.append(
                said.batch.select(["physical_offset", "store_ms", "body"]).take(pa.array(places))
            )

    def _add_epochs(self, said: Said) -> None:
        for place in np.flatnonzero(said.is_named("epoch")).tolist():
            names = ("body", "physical_offset", "store_ms")
            fields = {name: said.batch.column(name)[place].as_py() for name in names}
            self._epochs.append(begun_by(Record(topic=EPOCH_TOPIC, **fields))._asdict())

    def _add_grouped(self, said: Said, ids: pa.StringArray) -> None:
        groups = said.batch.column("message_group")
        if groups.null_count == len(groups):
            return
        topic = said.shop_topic
        consumers, names = self._mapping.consumers, self._mapping.topics.all
        is_consumed = np.array([*(name in consumers for name in names), False])[topic]
        places = np.flatnonzero(present(groups) & is_consumed & said.is_named(*MESSAGES))
        if len(places):
            columns = [topic[places], said.places[places], groups.take(places), ids.take(places)]
            self._grouped.append(pa.table(columns, ["topic", "queue", "message_group", "order_id"]))


_ROWS_MAX: Final = 1 << 16
"""Maximum number of possible rows for a lookup table. Above it, distinct rows are found by sorting."""
_MIN: Final = np.iinfo(np.int64).min
_MAX: Final = np.iinfo(np.int64).max
_COUNTED: Final = (
    ("records", "sum"), ("record_bytes", "sum"), ("first_ms", "min"), ("last_ms", "max"),
    ("unreadable", "sum"), ("unreadable_offset", "min"), ("without_key", "sum"),
)  # fmt: skip
_COUNTS: Final = ["kind", "topic", "minute_ms", *(name for name, _ in _COUNTED)]


def _by_span(rows: pa.Table) -> pa.Table:
    """Return the rows of a part with times in the resolution for its whole span."""
    place = rows.schema.get_field_index("minute_ms")
    return rows.set_column(place, "minute_ms", pa.array(bucket_starts(rows["minute_ms"].to_numpy())))


def _numbered(*columns: Integers) -> tuple[list[Integers], Integers]:
    """Return the distinct rows of columns of small numbers >= 0, and the index of each row among them."""
    sizes = tuple(int(column.max(initial=0)) + 1 for column in columns)
    rows = np.ravel_multi_index(columns, sizes)
    if (row_count := prod(sizes)) > _ROWS_MAX:
        different, place = np.unique(rows, return_inverse=True)
    else:
        is_there = np.zeros(row_count, np.bool_)
        is_there[rows] = True
        different, place = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[rows]
    return list(np.unravel_index(different, sizes)), place


def _only(ids: pa.StringArray, kept: Flags) -> pa.StringArray:
    """Return the IDs, with null for those that are not kept and therefore need no number."""
    return pc.if_else(pa.array(kept), ids, None) if (present(ids) & ~kept).any() else ids


def _ids(batch: pa.RecordBatch) -> pa.StringArray:
    """Return the order or push of each record: its first key, or the ID of a schedule's occurrence."""
    keys = batch.column("first_key")
    schedules = batch.column("schedule")
    if schedules.null_count == len(schedules):
        return keys
    rows = zip(keys.to_pylist(), schedules.to_pylist(), batch.column("message_id").to_pylist(), strict=True)
    return pa.array([_occurrence(*row) for row in rows], pa.string())


def _occurrence(key: str | None, schedule: str | None, message_id: str | None) -> str | None:
    """Return the key, or `<schedule id>@<time>` for a message of a schedule.

    The message ID is `<schedule>@<time>`. The schedule ID is the key, if any, or else the schedule
    property without its prefix, unquoted.
    """
    if not schedule:
        return key
    _, _, time = (message_id or "").rpartition("@")
    return f"{key or unquote(schedule.removeprefix(_SCHEDULE_PREFIX))}@{time}"


def _named_in_bodies(batch: pa.RecordBatch, ids: pa.StringArray) -> pa.StringArray:
    """Return the ID that each body must contain.

    All messages of a schedule have the same body, so it contains the schedule ID without the time.
    """
    schedules = batch.column("schedule")
    if schedules.null_count == len(schedules):
        return ids
    rows = zip(ids.to_pylist(), schedules.to_pylist(), strict=True)
    return pa.array([name.rpartition("@")[0] if name and of else name for name, of in rows], pa.string())


def _runs(said: Said) -> tuple[Integers, Integers]:
    """Return the due time (ms since 1970) of each run of a schedule, or -1, and the indexes of the runs."""
    due_ms = np.full(len(said.batch), -1)
    schedules = said.batch.column("schedule")
    if schedules.null_count < len(schedules):
        for place in np.flatnonzero(present(schedules) & said.is_named("normal")).tolist():
            _, _, time = (said.batch.column("message_id")[place].as_py() or "").rpartition("@")
            due_ms[place] = int(time) if time.isdecimal() else -1
    return due_ms, np.flatnonzero(due_ms >= 0)


def _shown(said: Said, place: int) -> dict[str, Any]:
    body = said.batch.column("body")[place].as_py() or b""
    return {
        "physical_offset": said.batch.column("physical_offset")[place].as_py(),
        "topic": said.topic_names[said.about[place]],
        "body": body[: 4 * UNREADABLE_CHARACTERS].decode(errors="replace")[:UNREADABLE_CHARACTERS],
    }


def _events_table(events: Events, order_row: pa.Array) -> pa.Table:
    return pa.table({"order_row": order_row} | {name: getattr(events, name) for name in FIELDS[1:]})


def _facts_table(
    events: Events, rows: Integers, kept: Flags, ids: pa.StringArray, first_row: int, facts: tuple[Fact, ...]
) -> pa.Table:
    """Return the fact rows of the orders, or pushes, with at least one event in `kept`."""
    is_there = np.bincount(rows[kept], minlength=len(ids)) > 0
    numbers = np.flatnonzero(is_there)
    place_of = np.cumsum(is_there) - 1
    columns = facts_of(events, place_of[rows], len(numbers), facts)
    columns = [ids.take(pa.array(numbers)), pa.array(numbers + first_row), *columns]
    return pa.Table.from_arrays(columns, schema=schema(facts))


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else pa.table({})


def _texts(names: list[str] | tuple[str, ...], numbers: pa.ChunkedArray) -> pa.Array:
    return pa.array(list(names), pa.string()).take(numbers.combine_chunks())
