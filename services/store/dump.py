"""`store dump`: records, queue entries, timers, half messages and groups of a store, each as one JSON object.

Bodies are text if they are valid UTF-8, and base64 otherwise. Compressed bodies are decompressed. Damage is
reported in order as an object with "damaged": true.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from commitlog.errors import StoreError
from commitlog.log.recovery import Damage
from commitlog.records import properties
from commitlog.records.compression import plain
from commitlog.records.inner_batch import message_count
from commitlog.records.kinds import AUTH_TOPIC, kind_of
from commitlog.records.record import Record
from consumequeue.dispatch import entry_of, is_indexed
from consumequeue.entry import Entry
from services.broker.spine.errors import TopicNotFound
from services.store.read_only.opening import OpenStore
from services.store.read_only.state import State
from services.store.verify.queues import QueueFiles, names_of, stored_in
from tidewheel import property_names

Line = dict[str, Any]


def log_lines(store: OpenStore, from_offset: int, topic: str | None) -> Iterator[Line]:
    """Yield the records from `from_offset` on, optionally only those of `topic`.

    A half message or timer belongs to its real topic and to the internal topic.
    """
    start = max((offset for offset in store.segment_offsets if offset <= from_offset), default=0)
    scan = store.scan(start)
    told = 0
    for found in scan:
        for damage in scan.damaged[told:]:
            yield from _damage_line(damage, from_offset)
        told = len(scan.damaged)
        if found.record.physical_offset >= from_offset and (topic is None or topic in _topics(found.record)):
            yield record_line(found.record, found.record_bytes)
    for damage in scan.damaged[told:]:
        yield from _damage_line(damage, from_offset)


def record_line(record: Record, record_bytes: int) -> Line:
    """Return a record as a JSON object."""
    return {
        "physical_offset": record.physical_offset,
        "record_bytes": record_bytes,
        "kind": word_of(record),
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "born_host": ":".join(map(str, record.born_host)),
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "half_offset": record.half_offset,
        "properties": properties.decode(record.properties),
        **_body(record),
    }


def word_of(record: Record) -> str:
    """Return the kind of a record (`commitlog.records.kinds`), with "message" for normal messages and
    "access" for access records.
    """
    if record.topic == AUTH_TOPIC:
        return "access"
    kind = kind_of(record)
    return "message" if kind == "normal" else kind


def queue_lines(store: OpenStore, topic: str, queue_id: int, from_offset: int) -> Iterator[Line]:
    """Yield the entries of one queue: first from its files and the newest snapshot, then from the log.

    Raises:
        TopicNotFound: If the queue has no entries.
        StoreError: If a queue file cannot be read.
    """
    stored = {(one.topic, one.queue_id): one for one in stored_in(store)}
    key = topic, queue_id
    files = QueueFiles(store, key, names_of(store, *key), stored.get(key))
    lines = chain(_stored_lines(files), _log_lines(store, bool(stored), topic, queue_id, files.end_offset))
    is_empty = True
    for line in lines:
        is_empty = False
        if line["queue_offset"] >= from_offset:
            yield line
    if is_empty:
        raise TopicNotFound(
            f"{topic!r} queue {queue_id} has no entry in a file, in the newest snapshot, or in the log up to "
            f"{store.durable_offset}. See what there is: tidewheel store info"
        )


def _stored_lines(files: QueueFiles) -> Iterator[Line]:
    _check_readable(files)
    for queue_offset in range(files.first_offset, files.end_offset):
        found = files.entry(queue_offset)
        _check_readable(files)
        if found is not None:
            is_in_tail = files.tail_from <= queue_offset < files.tail_end_offset
            yield _entry_line(queue_offset, found, "snapshot" if is_in_tail else "file")


def _check_readable(files: QueueFiles) -> None:
    for path, why in files.unreadable.items():
        raise StoreError(f"{path} cannot be read ({why}). Make the queues anew: tidewheel store repair")


def _log_lines(
    store: OpenStore, has_snapshot: bool, topic: str, queue_id: int, from_offset: int
) -> Iterator[Line]:
    """Yield the entries for records after the newest snapshot, which otherwise exist only in the broker's
    memory.
    """
    start = max(store.snapshot_offsets, default=0) if has_snapshot else 0
    for found in store.scan(start):
        one = found.record
        if (one.topic, one.queue_id) == (topic, queue_id) and is_indexed(one):
            first = one.queue_offset
            for queue_offset in range(max(first, from_offset), first + message_count(one)):
                yield _entry_line(queue_offset, entry_of(one, found.record_bytes, queue_offset), "log")


def _entry_line(queue_offset: int, found: Entry, where: str) -> Line:
    return {
        "queue_offset": queue_offset,
        "physical_offset": found.physical_offset,
        "record_bytes": found.record_bytes,
        "tags_code": found.tags_code,
        "gap": found.record_bytes == 0,
        "where": where,
    }


def timer_lines(state: State, topic: str | None) -> Iterator[Line]:
    """Return the pending delayed messages by due time, then the ended ones in the retained history.

    The topic of an ended message is known only as long as its record is in the log.
    """
    timers = chain(state.pending_timers(), state.ended_timers())
    return (asdict(one) for one in timers if topic in (None, one.topic))


def half_lines(state: State) -> Iterator[Line]:
    """Return the open and expired half messages, then the ended ones in the retained history."""
    waiting_first = sorted(state.halves, key=lambda one: one.state not in ("OPEN", "EXPIRED"))
    return (asdict(one) for one in waiting_first)


def group_lines(state: State, topic: str | None) -> Iterator[Line]:
    """Return the offsets of each group in each queue."""
    return ({**asdict(one), "lag": one.lag} for one in state.groups if topic in (None, one.topic))


def _damage_line(damage: Damage, from_offset: int) -> Iterator[Line]:
    if damage.end_offset > from_offset:
        yield {"damaged": True, "physical_offset": damage.first_offset, "end_offset": damage.end_offset}


def _topics(record: Record) -> tuple[str, str]:
    return record.topic, properties.value_of(record.properties, property_names.REAL_TOPIC)


def _body(record: Record) -> Line:
    body = plain(record.body, record.sys_flag)
    try:
        return {"body": body.decode(), "body_encoding": "text"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}
