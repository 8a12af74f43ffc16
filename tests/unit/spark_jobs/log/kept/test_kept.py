"""What outlived its segment has rows: timers in partition files, as a real broker's retention left them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import RetireSegments
from services.broker.timers.timer_files import TIMER_FILES
from spark_jobs.errors import StreamLost
from spark_jobs.log.kept import timers as kept_timers
from spark_jobs.source import LogReader

NOW_MS = 1_763_700_000_000
HOUR_MS = 3_600_000
SEGMENT_BYTES = 8 * 1024
KEEP_ALL = BrokerSettings(segment_bytes=SEGMENT_BYTES, housekeeping_ms=1_000)
KEEP_ONE = replace(KEEP_ALL, retention=RetentionPolicy(log_bytes_max=SEGMENT_BYTES, group_pin_ms=0))
TIMER_COUNT = 12
Row = dict[str, Any]


class Bench:
    """A broker whose shell does at once what its effects say."""

    def __init__(self, store: Path) -> None:
        self.disk = RealDisk(store)
        self.now_ms = NOW_MS
        self.broker = Broker.open(self.disk, KEEP_ALL, NOW_MS)
        self.count = 0

    def send(self, **attributes: Any) -> Any:
        self.count += 1
        message = Message(topic="t", body=b"x" * 500, message_id=f"M{self.count}", **attributes)
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def checkpoint(self) -> None:
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    @property
    def first_offset(self) -> int:
        """Where the log begins."""
        return layout.segment_offsets(self.disk)[0]

    def forget_all_but_one_segment(self) -> None:
        """Retention, as it comes by itself when the log is covered by snapshots."""
        for _ in range(40):
            self.send()
        self.checkpoint()
        self.broker = Broker.open(self.disk, KEEP_ONE, self.now_ms)
        while self.first_offset == 0:
            self.now_ms += 2_000
            for effect in self.broker.tick(self.now_ms):
                if isinstance(effect, RetireSegments):
                    effect.retirement.run(self.disk)
                    self.broker.continue_retirement(effect.retirement, self.now_ms)
            self.flush()
            self.checkpoint()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A broker with timers of which one was cancelled, and nothing of the first segments left."""
    made = Bench(tmp_path / "store")
    receipts = [made.send(delivery_ms=NOW_MS + HOUR_MS * hours) for hours in range(1, TIMER_COUNT + 1)]
    made.checkpoint()
    made.broker.timers.recall("t", receipts[3].recall_handle, made.now_ms)
    made.flush()
    made.checkpoint()
    return made


def timers(store: Path, columns: str = "message_id", **options: str) -> list[Row]:
    reader = LogReader({"path": str(store), "dataset": "timers", **options}, tuple(columns.split()))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def ids(rows: list[Row]) -> list[str]:
    return sorted((row["message_id"] for row in rows if row["message_id"]), key=lambda name: int(name[1:]))


WAITING = [f"M{number}" for number in range(1, TIMER_COUNT + 1) if number != 4]


def test_waiting_timers_outlive_their_log(bench: Bench) -> None:
    store = bench.disk.root
    columns = (
        "physical_offset record_bytes kind topic queue_id message_id due_ms real_topic real_queue_id store_ms"
    )
    before = {row["message_id"]: row for row in timers(store, columns) if row["kind"] == "timer"}
    bench.forget_all_but_one_segment()
    after = timers(store, columns)
    assert ids(after) == WAITING
    for row in after:
        assert row["record_bytes"] > 500
        assert row | {"record_bytes": 0} == before[row["message_id"]] | {"record_bytes": 0}
    assert timers(store, **{"from": str(bench.first_offset)}) == []


def test_a_kept_timer_that_was_flipped_is_damage_and_the_others_stay(bench: Bench) -> None:
    store = bench.disk.root
    columns = "physical_offset record_bytes message_id damage"
    bench.forget_all_but_one_segment()
    sound = timers(store, columns)
    path = next(path for path in sorted((store / layout.TIMERS).iterdir()) if b"M5" in path.read_bytes())
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"M5")] ^= 1
    path.write_bytes(stored)
    flipped = timers(store, columns)
    assert ids(flipped) == [name for name in WAITING if name != "M5"]
    (lost,) = [row for row in flipped if row["damage"]]
    (was,) = [row for row in sound if row["message_id"] == "M5"]
    assert (lost["physical_offset"], lost["record_bytes"]) == (was["physical_offset"], was["record_bytes"])


def test_files_that_go_while_they_are_read_are_followed_to_where_their_timers_went(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker splits a file between two reads: the snapshot is read anew, and no timer comes twice."""
    store = bench.disk.root
    bench.forget_all_but_one_segment()
    folder = store / layout.TIMERS
    away = next(path for path in sorted(folder.iterdir()) if b"M5" in path.read_bytes())
    hidden = store / "hidden"
    away.rename(hidden)

    def comes_back(store_root: Path, *, real: Callable[[Path], Any] = kept_timers._named_files) -> Any:
        if hidden.exists() and reads:
            hidden.rename(away)
        reads.append(store_root)
        return real(store_root)

    reads: list[Path] = []
    monkeypatch.setattr(kept_timers, "_named_files", comes_back)
    assert ids(timers(store)) == WAITING
    assert len(reads) == 2


def test_files_that_are_replaced_in_every_read_are_an_error(bench: Bench) -> None:
    """No timer is missing without a word: an audit would judge that the broker has lost it."""
    store = bench.disk.root
    bench.forget_all_but_one_segment()
    for path in (store / layout.TIMERS).iterdir():
        if b"M5" in path.read_bytes():
            path.unlink()
    with pytest.raises(StreamLost, match=r"In each of 5 reads, a file of pending timers in .* was replaced"):
        timers(store)


def test_a_damaged_copy_is_one_row_however_often_the_files_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.disk.root
    bench.forget_all_but_one_segment()
    path = next(path for path in sorted((store / layout.TIMERS).iterdir()) if b"M5" in path.read_bytes())
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"M5")] ^= 1
    path.write_bytes(stored)

    def one_more(store_root: Path, *, real: Callable[[Path], Any] = kept_timers._named_files) -> Any:
        reads.append(store_root)
        return [*real(store_root), *([("timers/gone", 1)] if len(reads) == 1 else [])]

    reads: list[Path] = []
    monkeypatch.setattr(kept_timers, "_named_files", one_more)
    found = timers(store, "physical_offset message_id damage")
    assert len(reads) == 2
    assert ids(found) == [name for name in WAITING if name != "M5"]
    assert len([row for row in found if row["damage"]]) == 1


def test_the_part_of_a_snapshot_has_the_name_that_the_broker_gives_it() -> None:
    assert kept_timers._TIMER_FILES == TIMER_FILES


def test_a_snapshot_without_partitions_has_no_files(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    parts = {TIMER_FILES: {"partitions": None}}
    monkeypatch.setattr(kept_timers, "newest_parts", lambda *_: (0, parts))
    assert kept_timers._named_files(bench.disk.root) == []
