"""Timer records made ready: by cutting and joining, and by decoding and encoding, to the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commitlog import layout
from commitlog.log import imported
from commitlog.log.segments import Segments
from commitlog.records import properties, record
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.timers import timer_source
from services.broker.timers.cutting import CutRecords
from services.broker.timers.timer_records import ReplacedTimer, moved_record, timer_record
from services.broker.timers.timer_source import QueueTable, TimerSource
from tests.memory_disk import MemoryDisk

SEGMENT_BYTES = 1 << 20
PLAIN = Message(topic="orders", body=b"pay", message_id="M1", delivery_ms=2_000, born_ms=7)


def timer(message: Message = PLAIN, replaced: ReplacedTimer | None = None, **fields: Any) -> Record:
    return replace(timer_record(message, 3, replaced), queue_offset=5, store_ms=1_000, **fields)


def with_properties(stored: bytes) -> Record:
    return replace(timer(), properties=stored)


CUT = {
    "plain": timer(),
    "named": timer(
        replace(PLAIN, tag="paid", keys=("a", "b"), properties={"TW_TIMER_KEY": "k", "colour": "ä"})
    ),
    "of many names": timer(replace(PLAIN, keys=("a", "b", "c", "b"))),
    "gzip": timer(replace(PLAIN, gzip=True)),
    "in a group": timer(replace(PLAIN, message_group="g", trace_context="t")),
    "with a long tag": timer(replace(PLAIN, tag="x" * 300)),
    "stored on IPv4 before": timer(store_host=("10.0.0.1", 80), reconsume_times=2, half_offset=99),
    "with the words of others in its body": timer(
        replace(PLAIN, body=b"\x02REAL_TOPIC\x01evil\x02REAL_QID\x011\x02UNIQ_KEY\x01M9\x02")
    ),
    "with a body that ends like a target": timer(replace(PLAIN, body=b"\x02UNIQ_KEY\x01")),
}
DECODED = {
    "a replacement": timer(replaced=ReplacedTimer(77, 3_000)),
    "moved": replace(moved_record(timer(), 11, 2_000, 9_000), store_ms=1_000),
    "moved twice": replace(
        moved_record(moved_record(timer(), 11, 2_000, 3_000), 22, 3_000, 9_000), store_ms=9
    ),
    "born on IPv6": timer(born_host=("::1", 80)),
    "stored on IPv6": timer(store_host=("::1", 80)),
    "a topic of 128 characters": timer(replace(PLAIN, topic="t" * 128)),
    "a flag": timer(flag=1),
    "a name twice": with_properties(timer().properties + b"UNIQ_KEY\x01M2\x02"),
}
FOREIGN = {
    "a pair without a value": with_properties(b"empty\x01\x02" + timer().properties),
    "a name without a pair": with_properties(b"alone\x02" + timer().properties),
    "not UTF-8": with_properties(b"name\x01\xff\x02" + timer().properties),
    "of a timer already": with_properties(b"TW_TIMER_OFFSET\x014\x02" + timer().properties),
}
"""What only an imported log may have."""


def fetched(timers: list[Record], *, are_imported: bool = False) -> tuple[Any, list[bytes], QueueTable]:
    """Lay records into a log, and fetch them."""
    disk, offsets, end = MemoryDisk(), [], SEGMENT_BYTES
    for one in timers:
        encoded = record.encode(replace(one, physical_offset=end))
        disk.write(layout.segment_path(SEGMENT_BYTES), end - SEGMENT_BYTES, encoded)
        offsets.append(end)
        end += len(encoded)
    if are_imported:
        imported.write(disk, end)
    queues = QueueTable()
    rows, records = TimerSource(disk, Segments.of(disk, SEGMENT_BYTES), queues).fetch(
        np.array(offsets, np.uint64)
    )
    return rows, records, queues


@pytest.mark.parametrize("one", [*CUT.values(), *DECODED.values()], ids=[*CUT, *DECODED])
def test_both_ways_give_the_same(one: Record) -> None:
    rows, records, queues = fetched([timer(), one, timer()])
    decoded_rows, decoded_records, decoded_queues = fetched([timer(), one, timer()], are_imported=True)
    assert records == decoded_records
    assert rows.tobytes() == decoded_rows.tobytes()
    assert queues.names == decoded_queues.names
    assert all(map(record.crc_holds, records))


@pytest.mark.parametrize("one", [*CUT.values(), *DECODED.values()], ids=[*CUT, *DECODED])
def test_what_this_broker_writes_most_is_cut(one: Record) -> None:
    assert CutRecords([record.encode(one)], [12]).places == ([0] if one in CUT.values() else [])


@pytest.mark.parametrize("one", FOREIGN.values(), ids=FOREIGN)
def test_what_is_imported_is_decoded(one: Record) -> None:
    _, [ready], _ = fetched([one], are_imported=True)
    wanted = timer_source.ready_record(one, SEGMENT_BYTES)
    assert record.decode(ready).properties.rstrip(b"\x02") == wanted.properties.rstrip(b"\x02")


def test_a_record_that_does_not_match_its_crc_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "crc_text", lambda _: b"__CRC32#\x010000000000\x02")
    assert len(fetched([timer(), timer()])[0]) == 0


def test_a_ready_record_is_the_message_and_names_its_timer() -> None:
    rows, records, queues = fetched([CUT["named"]])
    ready = record.decode(records[0])
    assert (ready.topic, ready.queue_id, ready.body) == ("orders", 3, b"pay")
    assert properties.decode(ready.properties) == {
        "TW_TIMER_KEY": "k",
        "colour": "ä",
        "UNIQ_KEY": "M1",
        "TAGS": "paid",
        "KEYS": "a b",
        "TIMER_OUT_MS": "2000",
        "TW_TIMER_OFFSET": str(SEGMENT_BYTES),
    }
    assert queues.names[int(rows[0]["queue"])] == ("orders", 3)
