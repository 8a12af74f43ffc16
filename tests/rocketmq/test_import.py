"""What Apache RocketMQ's own code wrote, we take over: every message, and all that was still to happen."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message, MessageType
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import CheckBackRequest, RunTimersJob
from services.rocketmq.import_store import ImportSummary, import_store
from services.store.read_only.opening import open_store
from services.store.read_only.state import fold
from services.store.verify.verify import verify

READABLE = ("ordinary", "batch", "inner", "compressed", "hosts", "v2")
FAR_MS = 4 * 3_600_000
Told = list[dict[str, Any]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def taken_over(source: Path, target: Path) -> ImportSummary:
    return import_store(source, target, lambda text: None, now_ms())


@contextmanager
def opened(root: Path) -> Iterator[Broker]:
    disk = RealDisk(root)
    try:
        yield Broker.open(disk, BrokerSettings(), now_ms())
    finally:
        disk.close()


def flush(broker: Broker, at_ms: int) -> None:
    while (write := broker.take_flush()) is not None:
        write.write()
        broker.complete_flush(write, at_ms)


def bodies(told: Told, *kinds: str) -> list[bytes]:
    return sorted(base64.b64decode(one["body"]) for one in told if one["kind"] in kinds)


@pytest.fixture
def store(written: tuple[Path, Told], tmp_path: Path) -> tuple[Path, Told, ImportSummary]:
    source, told = written
    target = tmp_path / "store"
    return target, told, taken_over(source, target)


def test_every_message_is_read_at_its_queue_offset(store: tuple[Path, Told, ImportSummary]) -> None:
    root, told, _ = store
    expected = [one for one in told if one["kind"] in READABLE]
    assert len(expected) > 140
    with opened(root) as broker:
        for one in expected:
            [found] = broker.finding.read(one["topic"], one["queueId"], one["queueOffset"], 1)
            assert found.message.body == base64.b64decode(one["body"]), one
            assert found.message.message_id == one["uniq"]
            assert not found.message.gzip


def test_the_log_is_copied_byte_for_byte(store: tuple[Path, Told, ImportSummary], written: Any) -> None:
    root, _, summary = store
    disk = RealDisk(root)
    for name in disk.list(layout.COMMITLOG):
        source = (written[0] / layout.COMMITLOG / name).read_bytes()
        length = min(len(source), summary.end_offset - int(name))
        assert source[:length] == disk.read(f"{layout.COMMITLOG}/{name}", 0, length)
    disk.close()
    assert summary.damaged == []


def test_the_store_proves_itself(store: tuple[Path, Told, ImportSummary]) -> None:
    assert verify(open_store(store[0]), now_ms()).findings == []


def test_topics_and_groups_are_taken_over(store: tuple[Path, Told, ImportSummary]) -> None:
    root, _, _ = store
    state = fold(open_store(root), now_ms())
    topics = {one.name: (one.message_type, one.queue_count) for one in state.topics}
    assert topics["orders"] == ("MIXED", 4)
    assert topics["reminders"] == ("DELAY", 1)
    assert topics["unused"] == ("MIXED", 4)
    assert topics["long" * 50] == ("MIXED", 1)
    assert not [name for name in topics if name.startswith(("RMQ", "rmq", "SCHEDULE", "TBW102"))]
    low = {(one.group, one.topic, one.queue_id): one.committed_offset for one in state.groups}
    next_offset = state.next_offsets[("orders", 1)]
    assert low == {("shop", "orders", 0): 10, ("shop", "orders", 1): next_offset, ("audit", "orders", 3): 2}


def test_what_waits_is_delivered_once_and_what_was_delivered_is_not(
    store: tuple[Path, Told, ImportSummary],
) -> None:
    root, told, summary = store
    assert summary.pending_timer_count == 4
    with opened(root) as broker:
        before = {topic: broker.finding.queue_range(topic, 0)[1] for topic in ("reminders", "late")}
        later_ms = now_ms() + FAR_MS
        while (due_ms := broker.next_due_ms()) is not None and due_ms <= later_ms:
            for effect in broker.tick(later_ms):
                if isinstance(effect, RunTimersJob):
                    effect.job.run(RealDisk(root))
                    broker.complete_timers_job(effect.job)
            if broker.gauges().pending_timers == 0:
                break
        flush(broker, later_ms)
        arrived = sorted(
            found.message.body
            for topic in before
            for found in broker.finding.read(topic, 0, before[topic], 10)
        )
    assert arrived == bodies(told, "level-pending", "timer-pending")


def test_open_halves_are_asked_about_and_can_be_committed(store: tuple[Path, Told, ImportSummary]) -> None:
    root, told, summary = store
    assert summary.open_half_count == 2
    with opened(root) as broker:
        later_ms = now_ms() + 60_000
        checks = [effect for effect in broker.tick(later_ms) if isinstance(effect, CheckBackRequest)]
        asked = [broker.transactions.message(check.half_offset) for check in checks]
    assert sorted(message.body for message in asked if message) == bodies(told, "half-open")
    assert {check.topic for check in checks} == {"payments"}


def test_the_broker_goes_on_behind_the_imported_log(store: tuple[Path, Told, ImportSummary]) -> None:
    root, _, _ = store
    with opened(root) as broker:
        expected = {queue: broker.finding.queue_range("orders", queue)[1] for queue in range(4)}
        receipt = broker.sending.send(Message(topic="orders", body=b"new", message_id="NEW"), now_ms())
        assert receipt.queue_offset in expected.values()
        broker.topics.create("fresh", MessageType.NORMAL, 1, now_ms())
        flush(broker, now_ms())
    with opened(root) as broker:
        assert broker.topics.get("fresh").queue_count == 1
        assert (
            sum(broker.finding.queue_range("orders", queue)[1] for queue in range(4))
            == sum(expected.values()) + 1
        )
        assert broker.damaged == []


def test_a_killed_broker_with_a_torn_tail_and_a_deleted_first_segment(
    written: tuple[Path, Told], tmp_path: Path
) -> None:
    source, told = tmp_path / "killed", written[1]
    shutil.copytree(written[0], source)
    (source / "abort").write_text("1")
    segments = sorted((source / "commitlog").iterdir())
    segments[0].unlink()
    end = segments[-1].read_bytes().rstrip(b"\0")
    with segments[-1].open("r+b") as file:
        file.truncate(len(end) - 20)
        file.truncate(len(segments[1].read_bytes()))
    (source / "commitlog" / f"{int(segments[-1].name) + 65536:020d}").write_bytes(bytes(65536))
    shutil.rmtree(source / "consumequeue")
    (source / "config" / "topics.json").unlink()
    summary = taken_over(source, tmp_path / "store")
    assert summary.first_offset == 65536
    assert summary.damaged == []
    with opened(tmp_path / "store") as broker:
        assert broker.topics.get("orders").queue_count == 4
        first, last = broker.finding.queue_range("orders", 0)
        assert 0 < first < last
        kept = [
            one
            for one in told
            if (one["topic"], one["queueId"]) == ("orders", 0) and one["queueOffset"] >= first
        ]
        assert [found.message.body for found in broker.finding.read("orders", 0, first, 100)] == [
            base64.b64decode(one["body"]) for one in kept
        ]
