"""Parts of a log by time, offset and topic are the rows that a scan of everything would have chosen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.facts import acks
from commitlog.log import keep
from commitlog.records import properties
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record, encode
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from spark_jobs.source import LogReader
from tidewheel.errors import UnknownChoice

WriteLog = Callable[..., Path]
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def read(store: Path, columns: str = "queue_offset", **options: str) -> list[dict[str, Any]]:
    reader = LogReader({"path": str(store), **options}, tuple(columns.split()))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["queue_offset"] for row in rows)


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


@pytest.fixture
def minutes(write_log: WriteLog) -> Path:
    """A record a minute, over several segments and probes."""
    return write_log(
        [
            Record(topic="t", body=bytes(9000), queue_offset=minute, store_ms=START_MS + minute * MINUTE_MS)
            for minute in range(60)
        ],
        segment_bytes=200_000,
    )


@pytest.mark.parametrize(("first", "end"), [(0, 60), (0, 1), (17, 23), (30, 30), (59, 90), (-5, 3), (70, 90)])
def test_a_range_of_time_is_what_was_stored_in_it(minutes: Path, first: int, end: int) -> None:
    window = {"from": iso(START_MS + first * MINUTE_MS), "to": iso(START_MS + end * MINUTE_MS)}
    assert numbers(read(minutes, **window)) == list(range(max(first, 0), min(end, 60)))


def test_a_range_of_time_reads_little_of_the_log(minutes: Path) -> None:
    window = {"from": iso(START_MS + 30 * MINUTE_MS), "to": iso(START_MS + 31 * MINUTE_MS)}
    reader = LogReader({"path": str(minutes), **window}, ("queue_offset",))
    planned = [part.part.until - part.part.start for part in reader.partitions()]  # type: ignore[attr-defined]
    assert sum(planned) < 200_000


def test_a_clock_that_was_set_back_within_the_margin_loses_no_row(write_log: WriteLog) -> None:
    times = [START_MS + number * 1000 for number in range(400)]
    times[200:230] = [START_MS + number * 1000 for number in range(160, 190)]
    store = write_log(
        [
            Record(topic="t", body=bytes(2000), queue_offset=number, store_ms=ms)
            for number, ms in enumerate(times)
        ],
        segment_bytes=1 << 20,
    )
    first_ms, end_ms = START_MS + 165_000, START_MS + 170_000
    expected = [number for number, ms in enumerate(times) if first_ms <= ms < end_ms]
    assert numbers(read(store, **{"from": iso(first_ms), "to": iso(end_ms)})) == expected


def test_a_range_of_offsets_has_the_records_that_start_in_it(minutes: Path) -> None:
    offsets = [row["physical_offset"] for row in read(minutes, "physical_offset")]
    rows = read(minutes, "physical_offset", **{"from": str(offsets[10]), "to": str(offsets[20])})
    assert [row["physical_offset"] for row in rows] == offsets[10:20]
    rows = read(minutes, "physical_offset", **{"from": str(offsets[10] + 1), "to": str(offsets[20] + 1)})
    assert [row["physical_offset"] for row in rows] == offsets[11:21]


def test_what_is_no_time_is_named(minutes: Path) -> None:
    with pytest.raises(UnknownChoice, match="from='yesterday' is neither"):
        read(minutes, **{"from": "yesterday"})


@pytest.fixture
def broker_store(tmp_path: Path) -> Path:
    """A broker's store: messages of two topics before a checkpoint and behind it, and an acknowledgement."""
    disk = RealDisk(tmp_path / "store")
    broker = Broker.open(disk, BrokerSettings(segment_bytes=16 * 1024, tail_entries_max=8), START_MS)

    def flush() -> None:
        while (one := broker.take_flush()) is not None:
            one.write()
            broker.complete_flush(one, START_MS)
        broker.store.dispatch.write()  # some entries are in files, the last ones in the snapshot

    def send(count: int) -> None:
        for number in range(count):
            topic = "many" if number % 5 else "few"
            broker.sending.send(
                Message(topic=topic, body=bytes(200), message_id=f"{broker.end_offset:032X}"), START_MS
            )
        flush()

    for topic in ("many", "few"):
        broker.topics.create(topic, MessageType.MIXED, 2, START_MS)
    send(200)
    broker.checkpoint(START_MS).write(disk)
    send(50)
    disk.close()
    return tmp_path / "store"


COLUMNS = "physical_offset topic queue_id queue_offset message_id"


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("topics", ["few", "many", "few,many", "nothing", "few,TW_SYS_TOPIC"])
def test_the_index_leads_to_the_rows_that_a_scan_finds(broker_store: Path, topics: str) -> None:
    scanned = read(broker_store, COLUMNS, topics=topics, index="never")
    assert ordered(read(broker_store, COLUMNS, topics=topics)) == ordered(scanned)
    assert len(scanned) == {"few": 50, "many": 200, "few,many": 250, "nothing": 0}.get(topics, 52)


def test_the_index_is_used_and_only_as_far_as_a_snapshot_goes(broker_store: Path) -> None:
    reader = LogReader({"path": str(broker_store), "topics": "few"}, ("topic",))
    kinds = [type(part.part).__name__ for part in reader.partitions()]  # type: ignore[attr-defined]
    assert set(kinds) == {"Indexed", "Slice"}
    assert kinds.count("Slice") <= 2


def test_an_index_that_is_not_as_the_snapshot_says_is_not_used(broker_store: Path) -> None:
    expected = read(broker_store, COLUMNS, topics="few")
    path = broker_store / layout.CONSUMEQUEUE / "few" / "0" / ("0" * 20)
    stored = bytearray(path.read_bytes())
    stored[3] ^= 1
    path.write_bytes(stored)
    assert ordered(read(broker_store, COLUMNS, topics="few")) == ordered(expected)
    path.unlink()
    assert ordered(read(broker_store, COLUMNS, topics="few")) == ordered(expected)


def test_a_damaged_record_that_the_index_leads_to_is_a_row_of_damage(broker_store: Path) -> None:
    hit = ordered(read(broker_store, "physical_offset record_bytes", topics="few"))[3]
    path = broker_store / layout.segment_path(hit["physical_offset"] // 16384 * 16384)
    stored = bytearray(path.read_bytes())
    stored[hit["physical_offset"] % 16384 + 120] ^= 1
    path.write_bytes(stored)
    rows = read(broker_store, "physical_offset record_bytes damage", topics="few")
    assert [row for row in rows if row["damage"]] == [hit | {"damage": "bytes that are no sound record"}]
    assert len(rows) == 50


def test_datasets_are_the_records_of_their_kinds(write_log: WriteLog) -> None:
    passed = acks.MessagesFinished("g", "t", 1, [(8, 1)], is_passed=True)
    acknowledged = acks.encode([acks.MessagesFinished("g", "t", 1, [(5, 3), (9, 1)]), passed])
    timed = properties.encode({"TW_TIMER_OFFSET": "77"})
    written = [
        Record(topic="t", body=b"", queue_offset=0),
        Record(topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"", queue_offset=1),
        Record(topic="t", body=b"", queue_offset=2, sys_flag=8, half_offset=100),
        Record(topic="TW_SYS_OUTCOME", body=b"", queue_offset=3, sys_flag=12, half_offset=200),
        Record(topic="rmq_sys_wheel_timer", body=b"", queue_offset=4),
        Record(topic="rmq_sys_wheel_timer", body=b"", queue_offset=5, sys_flag=8, half_offset=300),
        Record(topic="TW_SYS_VERB", body=b"", queue_offset=6, sys_flag=12, properties=timed),
        Record(topic="t", body=b"", queue_offset=7, properties=timed),
        Record(topic="%DLQ%g", body=b"", queue_offset=8),
        Record(topic="TW_SYS_ACK", body=acknowledged, queue_offset=9, sys_flag=12, store_ms=START_MS),
        Record(topic="TW_SYS_LEASE", body=b"", queue_offset=10, sys_flag=12),
    ]
    store = write_log(written)
    expected = {
        "records": list(range(11)),
        "messages": [0, 2, 7, 8],
        "halves": [1],
        "outcomes": [2, 3, 5],
        "timers": [4, 5, 6],
        "groups": [10],
        "damaged": [],
    }
    assert {name: numbers(read(store, dataset=name)) for name in expected} == expected
    rows = read(store, "group topic queue_id first_offset offset_count", dataset="acks")
    assert [tuple(row.values()) for row in rows] == [("g", "t", 1, 5, 3), ("g", "t", 1, 9, 1)]
    with pytest.raises(UnknownChoice, match="dataset='letters' is none of"):
        read(store, dataset="letters")


def test_damage_is_a_dataset(write_log: WriteLog) -> None:
    store = write_log([Record(topic="t", body=bytes(50), queue_offset=number) for number in range(5)])
    second = read(store, "physical_offset record_bytes")[1]
    path = store / layout.segment_path(0)
    stored = bytearray(path.read_bytes())
    stored[second["physical_offset"] + 90] ^= 4
    path.write_bytes(stored)
    assert read(store, "physical_offset record_bytes", dataset="damaged") == [second]
    assert len(read(store, "queue_offset", dataset="messages")) == 5


def test_kept_records_are_read_beside_the_log_that_lost_them(write_log: WriteLog) -> None:
    halves = [
        Record(topic="RMQ_SYS_TRANS_HALF_TOPIC", body=bytes(300), queue_offset=number) for number in range(12)
    ]
    store = write_log(halves, segment_bytes=2048)
    stored = [encode(half) for half in halves]
    segments = sorted((store / layout.COMMITLOG).iterdir())
    segments[0].unlink()
    (store / layout.KEEP).mkdir()
    (store / keep.path_of(1024)).write_bytes(stored[1])
    (store / keep.path_of(2048)).write_bytes(stored[1] + stored[2] + stored[8])
    rows = read(store, "physical_offset queue_offset", dataset="halves")
    expected = [half for half in halves if half.physical_offset >= 2048 or half.queue_offset in (1, 2)]
    assert ordered(rows) == [
        {"physical_offset": half.physical_offset, "queue_offset": half.queue_offset} for half in expected
    ]
    assert numbers(read(store, **{"from": "2048"})) == numbers(rows)[2:]
