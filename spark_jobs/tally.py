"""The events, facts and counts of one part of the log, gathered batch by batch.

Numbers are kept as columns until the part ends; then its orders are numbered, and everything becomes tables
(see `staging`). Memory: about 150 bytes an event, so 200 MB for a part of 256 MB of log.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumequeue import acks
from spark_jobs.acknowledged import places_of
from spark_jobs.bodies import readable
from spark_jobs.events import MESSAGES, NAMES, PUSHES, Events, Said, Words, events_of, present
from spark_jobs.mapping import Mapping
from spark_jobs.order_facts import ORDER_FACTS, PUSH_FACTS, Fact, facts_of, schema
from spark_jobs.ragged import Flags, Integers

MINUTE_MS: Final = 60_000
UNREADABLE_MAX: Final = 20
"""So many unreadable messages of a part are shown, each with so many characters of its body."""
UNREADABLE_CHARACTERS: Final = 120

_SCHEDULE_PREFIX: Final = "pushes:"


class Tally:
    """One part of the log, as it is read."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._topics = {name: number for number, name in enumerate(mapping.topics.all)}
        self._words = Words()
        self._events: list[Events] = []
        self._counted: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self._grouped: list[pa.Table] = []
        self._acks: list[tuple[int, int, int, int, int]] = []
        self._ends: dict[str, int] = {}
        self._unreadable: list[dict[str, Any]] = []
        self._damaged: list[dict[str, Any]] = []
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch of records, or of damage."""
        if batch.column("damage").null_count < len(batch):
            damaged = batch.select(["physical_offset", "record_bytes", "damage"])
            self._damaged += damaged.rename_columns(["physical_offset", "record_bytes", "why"]).to_pylist()
            return
        self.records += len(batch)
        said = Said(batch, self._mapping.topics, self._words)
        ids = _ids(batch)
        self._events.append(events_of(said, ids))
        self._count(said, ids)
        self._add_lateness(said)
        self._add_ends(said)
        self._add_acks(said)
        self._add_grouped(said, ids)

    def tables(self, first_row: int) -> dict[str, pa.Table]:
        """Everything, by data set; `first_row` is the number of the part's first order."""
        return {
            **self._of_events(first_row),
            "acks": _acks_table(self._acks),
            "grouped": _joined(self._grouped),
            "counts": self._counts(),
            "lateness": self._lateness(),
            "ends": pa.table({"how": list(self._ends), "timers": list(self._ends.values())}),
            "unreadable": pa.Table.from_pylist(self._unreadable),
            "damaged": pa.Table.from_pylist(self._damaged),
        }

    def _of_events(self, first_row: int) -> dict[str, pa.Table]:
        if not self._events:
            return {}
        events = Events.joined(self._events)
        indexed = events.order.dictionary_encode()
        has_order = present(indexed.indices)
        rows = indexed.indices.fill_null(0).to_numpy().astype(np.int64)
        named = events if has_order.all() else events.chosen(has_order)
        tables = {"events": _events_table(named, pa.array(rows[has_order] + first_row))}
        if not has_order.all():
            unnamed = events.chosen(~has_order)
            tables["unnamed"] = _events_table(unnamed, pa.nulls(len(unnamed), pa.int64()))
        of_pushes = named.topic == PUSHES
        for name, facts, kept in (("facts", ORDER_FACTS, ~of_pushes), ("pushes", PUSH_FACTS, of_pushes)):
            chosen, chosen_rows = named.chosen(kept), rows[has_order][kept]
            tables[name] = _facts_table(chosen, chosen_rows, indexed.dictionary, first_row, facts)
        return tables

    def _count(self, said: Said, ids: pa.StringArray) -> None:
        """Counts records by name, topic and minute; keeps the first of the unreadable messages."""
        is_unreadable, lacks_key = self._unreadable_messages(said, ids)
        store_ms = said.numbers("store_ms")
        offsets = said.numbers("physical_offset")
        rows = pa.table({
            "name": said.name,
            "about": said.about,
            "minute_ms": store_ms - store_ms % MINUTE_MS,
            "record_bytes": said.numbers("record_bytes"),
            "store_ms": store_ms,
            "unreadable": is_unreadable,
            "unreadable_offset": pa.array(offsets, mask=~is_unreadable),
            "without_key": lacks_key,
        })  # fmt: skip
        self._counted.append(
            rows.group_by(["name", "about", "minute_ms"], use_threads=False).aggregate(_COUNTED)
        )

    def _unreadable_messages(self, said: Said, ids: pa.StringArray) -> tuple[Flags, Flags]:
        """Which of the shop's messages are not what their topics promise, and which of them lack a key."""
        topic = said.shop_topic
        is_message = said.is_named(*MESSAGES) & (topic >= 0)
        unreadable, lacks_key = np.zeros(len(topic), np.bool_), np.zeros(len(topic), np.bool_)
        places = np.flatnonzero(is_message)
        if len(places):
            body, named = said.batch.column("body").take(pa.array(places)), ids.take(pa.array(places))
            unreadable[places] = ~readable(body, named, topic[places], self._mapping.bodies)
            lacks_key[places] = ~present(named)
        for place in np.flatnonzero(unreadable)[: UNREADABLE_MAX - len(self._unreadable)].tolist():
            self._unreadable.append(_shown(said, place))
        return unreadable, lacks_key

    def _counts(self) -> pa.Table:
        if not self._counted:
            return pa.table({})
        rows = pa.concat_tables(self._counted)
        whole = rows.group_by(["name", "about", "minute_ms"], use_threads=False).aggregate(_COUNTED_AGAIN)
        columns = [_texts(NAMES, whole["name"]), _texts(self._words.names, whole["about"])]
        return pa.table({
            "kind": columns[0], "topic": columns[1], "minute_ms": whole["minute_ms"],
            "records": whole["name_count_sum"], "record_bytes": whole["record_bytes_sum_sum"],
            "first_ms": whole["store_ms_min_min"], "last_ms": whole["store_ms_max_max"],
            "unreadable": whole["unreadable_sum_sum"],
            "unreadable_offset": whole["unreadable_offset_min_min"],
            "without_key": whole["without_key_sum_sum"],
        })  # fmt: skip

    def _add_lateness(self, said: Said) -> None:
        due_ms = said.numbers("due_ms")
        places = np.flatnonzero(said.is_named("delivered") & (due_ms >= 0))
        if len(places):
            store_ms = said.numbers("store_ms")[places]
            columns = {"about": said.about[places], "minute_ms": store_ms - store_ms % MINUTE_MS}
            self._late.append(pa.table(columns | {"late_ms": store_ms - due_ms[places]}))

    def _lateness(self) -> pa.Table:
        if not self._late:
            return pa.table({})
        by = ["about", "minute_ms", "late_ms"]
        whole = pa.concat_tables(self._late).group_by(by, use_threads=False).aggregate([([], "count_all")])
        return pa.table({
            "topic": _texts(self._words.names, whole["about"]), "minute_ms": whole["minute_ms"],
            "late_ms": whole["late_ms"], "deliveries": whole["count_all"],
        })  # fmt: skip

    def _add_ends(self, said: Said) -> None:
        counted = {
            "delivered": said.is_named("delivered"),
            "fired": said.is_named("fired"),
            "cancelled": said.is_named("verb") | said.is_carrying,
            "moved": said.is_moving,
            "replaced": said.is_replacing & ~said.is_moving,
        }
        for how, flags in counted.items():
            if count := int(np.count_nonzero(flags)):
                self._ends[how] = self._ends.get(how, 0) + count

    def _add_acks(self, said: Said) -> None:
        acting = self._mapping.consumers
        records = said.batch.filter(pa.array(said.is_named("ack")))
        for row in records.select(["physical_offset", "store_ms", "body"]).to_pylist():
            for group, topic, queue_id, ranges in acks.decode(row["body"]):
                if acting.get(topic) == group:
                    said_at = row["physical_offset"], row["store_ms"]
                    number = self._topics[topic]
                    self._acks += [(number, *places_of(queue_id, *one), *said_at) for one in ranges]

    def _add_grouped(self, said: Said, ids: pa.StringArray) -> None:
        groups = said.batch.column("message_group")
        if groups.null_count == len(groups):
            return
        topic = said.shop_topic
        is_consumed = np.isin(topic, [self._topics[name] for name in self._mapping.consumers])
        kept = pa.array(present(groups) & is_consumed & said.is_named(*MESSAGES))
        columns = {"topic": pa.array(topic), "queue": pa.array(said.places), "message_group": groups}
        self._grouped.append(pa.table(columns | {"order_id": ids}).filter(kept))


_COUNTED: Final = [
    ("name", "count"), ("record_bytes", "sum"), ("store_ms", "min"), ("store_ms", "max"),
    ("unreadable", "sum"), ("unreadable_offset", "min"), ("without_key", "sum"),
]  # fmt: skip
_COUNTED_AGAIN: Final = [
    ("name_count", "sum"), ("record_bytes_sum", "sum"), ("store_ms_min", "min"), ("store_ms_max", "max"),
    ("unreadable_sum", "sum"), ("unreadable_offset_min", "min"), ("without_key_sum", "sum"),
]  # fmt: skip


def _ids(batch: pa.RecordBatch) -> pa.StringArray:
    """The order or push of each record: its first key; of a schedule's message the occurrence's id."""
    keys = batch.column("keys")
    if pc.any(pc.match_substring(keys, " ")).as_py():
        keys = pc.struct_field(pc.extract_regex(keys, r"^(?P<key>[^ ]+)"), "key")
    schedules = batch.column("schedule")
    if schedules.null_count == len(schedules):
        return keys
    rows = zip(keys.to_pylist(), schedules.to_pylist(), batch.column("message_id").to_pylist(), strict=True)
    return pa.array([_occurrence(*row) for row in rows], pa.string())


def _occurrence(key: str | None, schedule: str | None, message_id: str | None) -> str | None:
    """`<schedule id>@<time>`: a schedule's messages have the id `<schedule>@<time>`."""
    if not schedule:
        return key
    _, _, time = (message_id or "").rpartition("@")
    return f"{key or unquote(schedule.removeprefix(_SCHEDULE_PREFIX))}@{time}"


def _shown(said: Said, place: int) -> dict[str, Any]:
    body = said.batch.column("body")[place].as_py() or b""
    return {
        "physical_offset": said.batch.column("physical_offset")[place].as_py(),
        "topic": said.topic_names[said.about[place]],
        "body": body[: 4 * UNREADABLE_CHARACTERS].decode(errors="replace")[:UNREADABLE_CHARACTERS],
    }


def _events_table(events: Events, order_row: pa.Array) -> pa.Table:
    return pa.table({
        "order_row": order_row, "code": events.code, "topic": events.topic,
        "physical_offset": events.physical_offset, "store_ms": events.store_ms, "ref": events.ref,
        "due_ms": events.due_ms, "queue": events.queue,
    })  # fmt: skip


def _facts_table(
    events: Events, rows: Integers, ids: pa.StringArray, first_row: int, facts: tuple[Fact, ...]
) -> pa.Table:
    """The rows of the orders, or pushes, that any of the events is about."""
    is_there = np.bincount(rows, minlength=len(ids)) > 0
    numbers = pa.array(np.arange(len(ids), dtype=np.int64) + first_row)
    columns = [ids, numbers, *facts_of(events, rows, len(ids), facts)]
    return pa.Table.from_arrays(columns, schema=schema(facts)).filter(pa.array(is_there))


def _acks_table(ranges: list[tuple[int, int, int, int, int]]) -> pa.Table:
    columns = np.array(ranges, np.int64).reshape(-1, 5).T
    names = ("topic", "first_place", "end_place", "physical_offset", "store_ms")
    return pa.table(dict(zip(names, columns, strict=True)))


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else pa.table({})


def _texts(names: list[str] | tuple[str, ...], numbers: pa.ChunkedArray) -> pa.Array:
    return pa.array(list(names), pa.string()).take(numbers.combine_chunks())
