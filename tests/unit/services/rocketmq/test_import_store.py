"""Stores as RocketMQ leaves them, made of its record bytes: taken over, or refused with nothing changed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore, StoreDamaged, StoreError, StoreLocked
from commitlog.records import properties, record
from commitlog.records.record import Record
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.explain.evidence import SearchedLog
from services.explain.explain import explain
from services.rocketmq.import_store import ImportSummary, import_store
from tidewheel.errors import LibraryMissing

SEGMENT_BYTES = 2048
NOW_MS = 1_700_000_000_000


class Genuine:
    """Writes a log as RocketMQ does by default: no whole-record CRC, preallocated segments."""

    def __init__(self, root: Path, first_offset: int = 0) -> None:
        self.root = root
        self.end_offset = first_offset
        (root / "commitlog").mkdir(parents=True)
        self._open_segment()

    def put(self, new: Record) -> int:
        new.physical_offset = self.end_offset
        new.store_ms = new.store_ms or NOW_MS - 10_000
        data = record.encode(new, with_crc=False)
        left = SEGMENT_BYTES - self.end_offset % SEGMENT_BYTES
        if len(data) + record.BLANK_BYTES > left:
            self._write(record.blank(left) + b"\xa5" * (left - record.BLANK_BYTES))
            self._open_segment()
            return self.put(new)
        self._write(data)
        return new.physical_offset

    def message(self, number: int, queue_offset: int, **more: object) -> int:
        stored = properties.encode({"UNIQ_KEY": f"ID{number}"})
        body = f"message {number} ".encode() + b"x" * 200
        return self.put(
            Record(topic="t", body=body, properties=stored, queue_offset=queue_offset, **more)  # type: ignore[arg-type]
        )

    def config(self, name: str, text: str) -> None:
        (self.root / "config").mkdir(exist_ok=True)
        (self.root / "config" / name).write_text(text)

    def overwrite(self, offset: int, data: bytes) -> None:
        first = offset - offset % SEGMENT_BYTES
        with (self.root / layout.segment_path(first)).open("r+b") as file:
            file.seek(offset - first)
            file.write(data)

    def _write(self, data: bytes) -> None:
        self.overwrite(self.end_offset, data)
        self.end_offset += len(data)

    def _open_segment(self) -> None:
        (self.root / layout.segment_path(self.end_offset)).write_bytes(bytes(SEGMENT_BYTES))


@pytest.fixture
def genuine(tmp_path: Path) -> Genuine:
    return Genuine(tmp_path / "theirs")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "ours"


def taken_over(genuine: Genuine, target: Path) -> ImportSummary:
    return import_store(genuine.root, target, lambda text: None, NOW_MS)


def opened(target: Path) -> Broker:
    return Broker.open(RealDisk(target), BrokerSettings(segment_bytes=SEGMENT_BYTES), NOW_MS)


def numbers(broker: Broker, first: int = 0) -> list[int]:
    found = broker.finding.read("t", 0, first, 100)
    return [int(one.message.message_id.removeprefix("ID")) for one in found]


def test_all_messages_come_over_several_segments_and_a_preallocated_tail(
    genuine: Genuine, target: Path
) -> None:
    for number in range(20):
        genuine.message(number, number)
    (genuine.root / layout.segment_path(4 * SEGMENT_BYTES)).write_bytes(bytes(SEGMENT_BYTES))
    (genuine.root / layout.segment_path(5 * SEGMENT_BYTES)).write_bytes(b"")
    summary = taken_over(genuine, target)
    assert (summary.record_count, summary.end_offset, summary.damaged) == (20, genuine.end_offset, [])
    assert numbers(opened(target)) == list(range(20))
    assert sorted(path.name for path in (target / "commitlog").iterdir()) == [
        f"{number * SEGMENT_BYTES:020d}" for number in range(4)
    ]


def test_a_log_that_starts_late_keeps_its_offsets(tmp_path: Path, target: Path) -> None:
    genuine = Genuine(tmp_path / "theirs", 7 * SEGMENT_BYTES)
    for number in range(500_000, 500_010):
        genuine.message(number, number)
    assert taken_over(genuine, target).first_offset == 7 * SEGMENT_BYTES
    broker = opened(target)
    assert broker.finding.queue_range("t", 0) == (500_000, 500_010)
    assert numbers(broker, 500_000) == list(range(500_000, 500_010))


def test_damage_costs_the_record_it_hit_and_no_other(genuine: Genuine, target: Path) -> None:
    places = [genuine.message(number, number) for number in range(10)]
    genuine.overwrite(places[4] + 150, b"?")
    summary = taken_over(genuine, target)
    assert [one.first_offset for one in summary.damaged] == [places[4]]
    assert numbers(opened(target)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_old_records_behind_the_end_do_not_come_back(genuine: Genuine, target: Path) -> None:
    genuine.message(0, 0)
    torn_at = genuine.message(1, 1, store_ms=NOW_MS - 90_000)
    genuine.message(2, 2, store_ms=NOW_MS - 90_000)
    genuine.end_offset = torn_at
    genuine.put(
        Record(topic="t", body=b"short", queue_offset=1, properties=properties.encode({"UNIQ_KEY": "ID3"}))
    )
    end_offset = genuine.end_offset
    summary = taken_over(genuine, target)
    assert (summary.end_offset, summary.damaged) == (end_offset, [])
    assert numbers(opened(target)) == [0, 3]


def test_a_topic_that_was_made_again_shows_its_new_messages(genuine: Genuine, target: Path) -> None:
    for number in range(6):
        genuine.message(number, number)
    for number in range(3):
        genuine.message(10 + number, number)
    taken_over(genuine, target)
    broker = opened(target)
    assert numbers(broker) == [10, 11, 12]
    assert broker.finding.queue_range("t", 0) == (0, 3)


def test_a_group_gets_again_what_it_held_or_was_to_retry_and_nothing_else(
    genuine: Genuine, target: Path
) -> None:
    for number in range(8):
        genuine.message(number, number)
    stored = properties.encode({"UNIQ_KEY": "ID3", "RETRY_TOPIC": "t"})
    genuine.put(Record(topic="%RETRY%g", body=b"again", properties=stored))
    genuine.config("consumerOffset.json", '{"offsetTable":{"t@g":{0:6}}}')
    checkpoint = {"t": "t", "c": "g", "q": 0, "so": 1, "pt": 7, "bn": "b", "n": 1, "d": [0], "bm": 0}
    stored = properties.encode({"TAGS": "ck", "REAL_TOPIC": "rmq_sys_REVIVE_LOG_c"})
    genuine.put(Record(topic="rmq_sys_wheel_timer", body=json.dumps(checkpoint).encode(), properties=stored))
    assert taken_over(genuine, target).redelivered_count == 2
    broker = opened(target)
    given = broker.receiving.receive("g", "t", EVERYTHING, 32, 60_000, "client", False, NOW_MS).deliveries
    assert [one.queue_offset for one in given] == [1, 3, 6, 7]


def test_numbers_that_rocketmq_itself_ignores_stop_neither_an_import_nor_explain(
    genuine: Genuine, target: Path
) -> None:
    stored = {"REAL_TOPIC": "t", "REAL_QID": "0", "UNIQ_KEY": "H", "CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}
    named = properties.encode(stored)
    genuine.put(Record(topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"half", properties=named))
    stored = {"REAL_TOPIC": "t", "REAL_QID": "0", "UNIQ_KEY": "T", "TIMER_OUT_MS": "later"}
    genuine.put(Record(topic="rmq_sys_wheel_timer", body=b"never", properties=properties.encode(stored)))
    summary = taken_over(genuine, target)
    assert (summary.open_half_count, summary.pending_timer_count) == (1, 0)
    log = SearchedLog.at(target)
    assert [event.what for event in explain(log, "H").events] == ["half", "half"]
    assert [event.what for event in explain(log, "T").events] == ["stored"]


def test_a_broker_does_not_start_from_an_import_without_its_snapshots(genuine: Genuine, target: Path) -> None:
    genuine.message(0, 0)
    taken_over(genuine, target)
    for path in (target / "snapshots").iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match="import again"):
        opened(target)


def test_a_missing_library_is_told_before_anything_is_written(
    genuine: Genuine, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine.message(0, 0, sys_flag=0x201)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(LibraryMissing):
        taken_over(genuine, target)
    assert [path.name for path in target.iterdir()] == ["lock"]


def test_an_import_that_fails_half_way_leaves_nothing(
    genuine: Genuine, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine.message(0, 0)

    def full(self: RealDisk, path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RealDisk, "sync", full)
    with pytest.raises(OSError, match="No space"):
        taken_over(genuine, target)
    assert [path.name for path in target.iterdir()] == ["lock"]


def test_what_cannot_be_imported_is_refused_with_the_way_out(
    genuine: Genuine, target: Path, tmp_path: Path
) -> None:
    genuine.message(0, 0)
    with pytest.raises(NotAStore, match="no folder"):
        import_store(tmp_path / "nowhere", target, print, NOW_MS)
    with pytest.raises(NotAStore, match="storePathRootDir"):
        import_store(tmp_path, target, print, NOW_MS)
    target.mkdir(exist_ok=True)
    (target / "mine.txt").write_text("kept")
    with pytest.raises(NotAStore, match=r"mine\.txt"):
        taken_over(genuine, target)
    assert (target / "mine.txt").read_text() == "kept"
    (target / "mine.txt").unlink()
    (genuine.root / layout.segment_path(SEGMENT_BYTES)).write_bytes(bytes(100))
    with pytest.raises(StoreError, match="has 100 bytes"):
        taken_over(genuine, target)
    (genuine.root / layout.segment_path(SEGMENT_BYTES)).unlink()
    (genuine.root / layout.segment_path(2 * SEGMENT_BYTES)).write_bytes(bytes(SEGMENT_BYTES))
    with pytest.raises(StoreError, match=f"{SEGMENT_BYTES:020d} is missing"):
        taken_over(genuine, target)
    (genuine.root / layout.segment_path(2 * SEGMENT_BYTES)).unlink()
    taken_over(genuine, target)
    with pytest.raises(NotAStore, match="store snapshot"):
        import_store(target, tmp_path / "again", print, NOW_MS)


def test_a_running_broker_s_store_is_not_imported(genuine: Genuine, target: Path) -> None:
    genuine.message(0, 0)
    path = genuine.root / "lock"
    path.write_text("lock")
    holder = (
        f"import fcntl, os; fd = os.open({str(path)!r}, os.O_RDWR); "
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0); print('held', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(StoreLocked, match="Stop it"):
        taken_over(genuine, target)
    process.communicate("\n")
    descriptor = os.open(path, os.O_RDWR)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    os.close(descriptor)


def test_due_times_of_delay_levels_come_from_the_queue_or_the_table(genuine: Genuine, target: Path) -> None:
    stored = {"REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "3"}
    for number in range(2):
        named = properties.encode(stored | {"UNIQ_KEY": f"ID{number}"})
        offset = genuine.put(
            Record(topic="SCHEDULE_TOPIC_XXXX", queue_id=2, queue_offset=number, body=b"l", properties=named)
        )
        if number == 0:
            folder = genuine.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
            folder.mkdir(parents=True)
            entry = offset.to_bytes(8, "big") + bytes(4) + (NOW_MS + 5_000).to_bytes(8, "big")
            (folder / f"{0:020d}").write_bytes(entry.ljust(200, b"\0"))
    genuine.config("topics.json", json.dumps({"topicConfigTable": {"t": {"readQueueNums": 1}}}))
    assert taken_over(genuine, target).pending_timer_count == 2
    broker = opened(target)
    broker.tick(NOW_MS + 4_999)
    assert broker.gauges().pending_timers == 1
    broker.tick(NOW_MS + 5_000)
    assert broker.gauges().pending_timers == 0
