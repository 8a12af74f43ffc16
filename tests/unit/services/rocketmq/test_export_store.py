"""An export's files, byte by byte where RocketMQ is strict; that it opens them is in tests/rocketmq."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore, StoreLocked
from commitlog.log.recovery import Damage, LogScan
from commitlog.records import record
from commitlog.records.message import Message, MessageType
from consumequeue.entry import Entry, decode_all
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, RunTimersJob, TimerName
from services.rocketmq import batches
from services.rocketmq.config_files import TimerCheck, read_config
from services.rocketmq.export_store import ExportSummary, export_store
from services.rocketmq.filler import fillers
from services.rocketmq.import_store import import_store
from services.rocketmq.queues import QueueFiles
from services.store.read_only.opening import open_store
from services.store.read_only.reading import StoreFiles
from services.store.verify.verify import verify
from txn.checkback import CheckBackPolicy

SEGMENT_BYTES = 4096
NOW_MS = 1_700_000_000_000
FILE_BYTES = 6_000_000
GAP = Entry(77, 99, 0)
BEFORE_FIRST = Entry(0, 0x7FFFFFFF, 0)


def entries(path: Path, first: int, count: int) -> list[Entry]:
    with path.open("rb") as file:
        file.seek(first * 20)
        return decode_all(file.read(count * 20))


def test_queue_files_have_their_full_length_and_no_hole(tmp_path: Path) -> None:
    queues = QueueFiles(tmp_path)
    queues.put("t", 0, 300_002, Entry(1000, 100, 5), GAP)
    queues.put("t", 0, 300_005, Entry(1100, 100, 6), GAP)
    queues.finish()
    folder = tmp_path / "consumequeue" / "t" / "0"
    [path] = folder.iterdir()
    assert (path.name, path.stat().st_size) == (f"{FILE_BYTES:020d}", FILE_BYTES)
    assert entries(path, 0, 7) == [
        BEFORE_FIRST, BEFORE_FIRST, Entry(1000, 100, 5), GAP, GAP, Entry(1100, 100, 6), Entry(0, 0, 0),
    ]  # fmt: skip


def test_queue_offsets_over_two_files_and_begun_anew(tmp_path: Path) -> None:
    queues = QueueFiles(tmp_path)
    for queue_offset in (299_999, 300_000, 300_001):
        queues.put("long", 1, queue_offset, Entry(queue_offset, 1, 0), GAP)
        queues.put("again", 1, queue_offset, Entry(queue_offset, 1, 0), GAP)
    queues.put("again", 1, 299_999, Entry(9, 1, 0), GAP)
    queues.finish()
    names = {path.name for path in (tmp_path / "consumequeue" / "long" / "1").iterdir()}
    assert names == {f"{0:020d}", f"{FILE_BYTES:020d}"}
    [path] = (tmp_path / "consumequeue" / "again" / "1").iterdir()
    assert entries(path, 299_999, 1) == [Entry(9, 1, 0)]


def test_batch_queues_are_those_that_rocketmq_itself_wrote(tmp_path: Path) -> None:
    queues = QueueFiles(tmp_path)
    for queue_offset in range(6):
        physical_offset = 0x31669 if queue_offset < 3 else 0x317C1
        queues.put("batches", 0, queue_offset, Entry(physical_offset, 0x158, 0), GAP)
    queues.finish()
    stored = {
        0x31669: record.Record(topic="batches", body=b"", store_ms=0x1A1FDAEDCC2),
        0x317C1: record.Record(topic="batches", body=b"", store_ms=0x1A1FDAEDCC3),
    }
    batches.convert(tmp_path, "batches", stored.__getitem__)
    [path] = (tmp_path / "batchconsumequeue" / "batches" / "0").iterdir()
    assert (path.name, path.stat().st_size) == (f"{0:020d}", 13_800_000)
    assert path.read_bytes()[:100].hex() == (
        "00000000000316690000015800000000000000000000""01a1fdaedcc200000000000000000003ffffffff00000000"
        "00000000000317c10000015800000000000000000000""01a1fdaedcc300000000000000030003ffffffff00000000"
    ) + "00" * 8  # fmt: skip
    assert not (tmp_path / "consumequeue" / "batches").exists()


@pytest.mark.parametrize("length", [92, 110, 150, 5000, 8192])
def test_a_filler_is_sound_for_a_genuine_reader_and_just_as_long_as_the_damage(length: int) -> None:
    covering = list(fillers(Damage(100, 100 + length), SEGMENT_BYTES, NOW_MS))
    assert covering[0][0] == 100
    end = 100
    for offset, data in covering:
        assert offset == end
        if data[4:8] == struct.pack(">I", record.MAGIC_BLANK):
            end = offset + int.from_bytes(data[:4], "big")
            assert end % SEGMENT_BYTES == 0
            continue
        assert record.is_sound(data, may_lack_crc=True)
        filler = record.decode(data)
        assert (filler.physical_offset, filler.type, filler.store_ms) == (offset, record.TYPE_SYSTEM, NOW_MS)
        end = offset + len(data)
    assert end == 100 + length


class Shop:
    """A broker on a real store; what it did is durable when `close` returns."""

    def __init__(self, root: Path) -> None:
        self._disk = RealDisk(root)
        settings = BrokerSettings(
            segment_bytes=SEGMENT_BYTES, check_back=CheckBackPolicy(immunity_ms=0, count_max=0)
        )
        self.broker = Broker.open(self._disk, settings, NOW_MS)
        self.broker.topics.create("t", MessageType.MIXED, 1, NOW_MS)

    def send(self, name: str, **how: Any) -> Any:
        return self.broker.sending.send(
            Message(topic="t", body=name.encode(), message_id=name, **how), NOW_MS
        )

    def flush(self, now_ms: int = NOW_MS) -> None:
        while (write := self.broker.take_flush()) is not None:
            write.write()
            self.broker.complete_flush(write, now_ms)

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(NOW_MS)
        checkpoint.write(self._disk)
        self.broker.complete_checkpoint(checkpoint)

    def wait_until(self, now_ms: int) -> None:
        """Lets everything happen that is due by then."""
        is_going_on = True
        while is_going_on:
            jobs = [one.job for one in self.broker.tick(now_ms) if isinstance(one, RunTimersJob)]
            for job in jobs:
                job.run(self._disk)
                self.broker.complete_timers_job(job)
            is_going_on = bool(jobs) or self.broker.end_offset > self.broker.durable_offset
            self.flush(now_ms)

    def close(self) -> None:
        self.flush()
        self._disk.close()


def exported(shop: Shop, root: Path, target: Path) -> ExportSummary:
    shop.close()
    return export_store(root, target, lambda text: None, NOW_MS + 100_000)


def records(root: Path) -> list[record.Record]:
    return [found.record for found in LogScan(RealDisk(root), SEGMENT_BYTES)]


def log_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / layout.COMMITLOG).iterdir()))


def test_the_log_is_copied_and_goes_on_with_what_is_still_to_happen(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shop = Shop(ours)
    for number in range(30):
        shop.send(f"message {number}")
    shop.send("due", delivery_ms=NOW_MS + 1)
    shop.flush()
    shop.broker.tick(NOW_MS + 1)
    shop.send("later", delivery_ms=NOW_MS + 500_000)
    shop.flush()
    summary = exported(shop, ours, theirs)
    end = LogScan(RealDisk(ours), SEGMENT_BYTES)
    assert len(list(end)) > 30
    assert log_bytes(theirs)[: end.end_offset] == log_bytes(ours)[: end.end_offset]
    [fresh] = [one for one in _behind(theirs, end.end_offset) if one.topic == "rmq_sys_wheel_timer"]
    assert (fresh.body, fresh.queue_offset, b"TIMER_OUT_MS" in fresh.properties) == (b"later", 2, True)
    assert read_config(StoreFiles(theirs)).timer_check == TimerCheck(NOW_MS + 100_000, 2)
    assert (summary.pending_timer_count, summary.segment_bytes) == (1, SEGMENT_BYTES)
    assert sorted(path.name for path in theirs.iterdir()) == [
        "abort", "commitlog", "config", "consumequeue", "lock",
    ]  # fmt: skip


def test_what_was_recalled_before_an_export_stays_so_when_that_is_imported_again(tmp_path: Path) -> None:
    ours, theirs, again = tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"
    shop = Shop(ours)
    receipts = [shop.send(f"timer {number}", delivery_ms=NOW_MS + 500_000) for number in range(3)]
    shop.flush()
    shop.broker.timers.recall("t", receipts[1].recall_handle, NOW_MS)
    exported(shop, ours, theirs)
    summary = import_store(theirs, again, lambda text: None, NOW_MS + 100_000)
    assert summary.pending_timer_count == 2
    shop = Shop(again)
    shop.wait_until(NOW_MS + 500_000)
    got = shop.broker.receiving.receive(
        "g", "t", EVERYTHING, 32, 20_000, "c", False, NOW_MS + 500_000
    ).deliveries
    assert sorted(one.message.body for one in got) == [b"timer 0", b"timer 2"]
    shop.close()


def test_every_end_of_a_timer_holds_over_an_export_and_an_import(tmp_path: Path) -> None:
    ours, theirs, again = tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"
    shop = Shop(ours)
    for name in ("moved", "replaced", "cancelled", "carried away", "fired", "kept"):
        shop.send(name, delivery_ms=NOW_MS + 500_000, properties={"TW_TIMER_KEY": name})
    shop.flush()
    named = {name: TimerName("t", key=name) for name in ("moved", "replaced", "cancelled", "fired")}
    shop.broker.timers.move(named["moved"], NOW_MS + 600_000, NOW_MS)
    shop.send("anew", delivery_ms=NOW_MS + 700_000, properties={"TW_TIMER_KEY": "replaced"})
    shop.broker.timers.cancel(named["cancelled"], "", NOW_MS)
    carrying = {"TW_TIMER_KEY": "late", "TW_TIMER_CANCEL": "carried away"}
    shop.send("carrier", delivery_ms=NOW_MS + 800_000, properties=carrying)
    shop.broker.timers.fire(named["fired"], NOW_MS)
    shop.flush()
    waiting = {"kept", "moved", "anew", "carrier"}
    assert {one.message_id for one in shop.broker.timer_views.pending("", 100)} == waiting
    for _ in range(2):
        for number in range(40):
            shop.send(f"plain {number}")
        shop.checkpoint()
    (ours / layout.segment_path(0)).unlink()
    assert exported(shop, ours, theirs).pending_timer_count == len(waiting)
    summary = import_store(theirs, again, lambda text: None, NOW_MS + 100_000)
    assert (summary.pending_timer_count, summary.notes) == (len(waiting), [])
    shop = Shop(again)
    assert shop.broker.gauges().pending_timers == len(waiting)
    assert verify(open_store(again), NOW_MS).findings == []
    shop.wait_until(NOW_MS + 900_000)
    bodies: list[str] = []
    while got := shop.broker.receiving.receive(
        "g", "t", EVERYTHING, 32, 20_000, "c", False, NOW_MS + 900_000
    ).deliveries:
        bodies += [one.message.body.decode() for one in got]
    assert [one for one in bodies if not one.startswith("plain")] == ["kept", "moved", "anew", "carrier"]
    shop.close()


def test_ended_halves_get_ops_open_ones_stay_and_expired_ones_are_kept_as_rocketmq_keeps_them(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shop = Shop(ours)
    halves = [shop.send(f"half {number}", transactional=True) for number in range(4)]
    shop.flush()
    for number, end in ((0, Resolution.ROLLBACK), (2, Resolution.COMMIT)):
        one = halves[number]
        shop.broker.transactions.end("t", one.transaction_id, one.message_id, end, NOW_MS)
    shop.flush()
    summary = exported(shop, ours, theirs)
    assert (summary.open_half_count, summary.op_count) == (2, 1)
    config = read_config(StoreFiles(theirs))
    assert config.half_offset() == 1
    [op] = [one for one in records(theirs) if one.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    assert (op.body, op.queue_offset) == (b"2,", 0)
    assert config.group_offsets[("RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS")] == {0: 0}

    shop = Shop(ours)
    shop.broker.tick(NOW_MS + 10)
    summary = exported(shop, ours, tmp_path / "later")
    assert (summary.open_half_count, summary.expired_half_count) == (0, 2)
    kept = [one.body for one in records(tmp_path / "later") if one.topic == "TRANS_CHECK_MAX_TIME_TOPIC"]
    assert sorted(kept) == [b"half 1", b"half 3"]


def test_an_expired_half_is_expired_after_an_export_and_an_import(tmp_path: Path) -> None:
    ours, theirs, again = tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"
    shop = Shop(ours)
    shop.send("open", transactional=True, check_immunity_ms=3_600_000)
    shop.send("expired", transactional=True)
    shop.flush()
    shop.broker.tick(NOW_MS + 10)
    summary = exported(shop, ours, theirs)
    assert (summary.open_half_count, summary.expired_half_count, summary.op_count) == (1, 1, 1)
    taken = import_store(theirs, again, lambda text: None, NOW_MS + 200_000)
    assert (taken.open_half_count, taken.expired_half_count) == (1, 1)


def test_acknowledgements_above_a_gap_are_named(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shop = Shop(ours)
    for number in range(6):
        shop.send(f"message {number}")
    shop.flush()
    for delivery in shop.broker.receiving.receive(
        "g", "t", EVERYTHING, 32, 60_000, "client", False, NOW_MS
    ).deliveries:
        if delivery.queue_offset not in (2, 4):
            shop.broker.receiving.ack("g", "t", delivery.receipt_handle, NOW_MS)
    summary = exported(shop, ours, theirs)
    [repeat] = summary.repeats
    assert (repeat.group, repeat.topic, repeat.from_offset, repeat.count) == ("g", "t", 3, 2)
    assert read_config(StoreFiles(theirs)).group_offsets[("t", "g")] == {0: 2}
    groups = json.loads((theirs / "config" / "subscriptionGroup.json").read_text())
    assert list(groups["subscriptionGroupTable"]) == ["g"]


def test_what_rocketmq_has_no_place_for_is_named(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shop = Shop(ours)
    for name in ("report", "backup"):
        shop.broker.schedules.set(
            Schedule(name=name, cron="0 9 * * *", time_zone="UTC", topic="t", body=b"go"), NOW_MS
        )
    shop.broker.access.add_user("alice", "sealed", replaces_secret=False, now_ms=NOW_MS)
    schedules, users = exported(shop, ours, theirs).notes
    assert "report, backup" in schedules
    assert "not there: 1" in users


def test_damage_is_covered_and_told(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shop = Shop(ours)
    receipts = [shop.send(f"message {number}") for number in range(6)]
    shop.close()
    with (ours / layout.segment_path(0)).open("r+b") as file:
        file.seek(receipts[3].physical_offset + 90)
        file.write(b"?")
    summary = export_store(ours, theirs, lambda text: None, NOW_MS)
    assert [one.first_offset for one in summary.damaged] == [receipts[3].physical_offset]
    bodies = [one.body for one in records(theirs) if one.topic == "t"]
    assert bodies == [b"message 0", b"message 1", b"message 2", b"message 4", b"message 5"]
    queue = entries(theirs / "consumequeue" / "t" / "0" / f"{0:020d}", 0, 6)
    assert [one.physical_offset for one in queue] == [one.physical_offset for one in receipts]


def test_only_a_stopped_store_goes_into_an_empty_folder(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    Shop(ours).close()
    theirs.mkdir()
    (theirs / "mine.txt").write_text("kept")
    with pytest.raises(NotAStore, match=r"mine\.txt"):
        export_store(ours, theirs, print, NOW_MS)
    assert (theirs / "mine.txt").read_text() == "kept"
    with pytest.raises(NotAStore, match="does not exist"):
        export_store(tmp_path / "nowhere", tmp_path / "new", print, NOW_MS)
    with held_by_another(ours), pytest.raises(StoreLocked, match="Stop it"):
        export_store(ours, tmp_path / "new", print, NOW_MS)


@contextmanager
def held_by_another(root: Path) -> Iterator[None]:
    """A process that holds the store's lock, as a broker does."""
    program = (
        "import sys; from pathlib import Path; from commitlog.lock import StoreLock; "
        f"StoreLock(Path({str(root)!r})).acquire(); print('held', flush=True); sys.stdin.readline()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield
    finally:
        process.communicate("\n")


def _behind(root: Path, offset: int) -> list[record.Record]:
    return [one for one in records(root) if one.physical_offset >= offset]
