"""What we export, Apache RocketMQ's own code opens: every message, and all that was still to happen, once."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.log.recovery import LogScan
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution
from services.rocketmq.export_store import export_store
from services.rocketmq.import_store import import_store

SEGMENT_BYTES = 64 * 1024
USER_TOPICS = ("orders", "payments", "reminders")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def silent(text: str) -> None:
    """Nobody looks at the progress."""


class Shop:
    """A broker on a real store whose every call is durable when it returns."""

    def __init__(self, root: Path) -> None:
        self._disk = RealDisk(root)
        self.broker = Broker.open(self._disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), now_ms())

    def send(self, topic: str, body: str, **how: Any) -> Any:
        message = Message(topic=topic, body=body.encode(), message_id=f"ID-{body[:40]}", **how)
        receipt = self.broker.sending.send(message, now_ms())
        self.flush()
        return receipt

    def flush(self) -> None:
        while (write := self.broker.take_flush()) is not None:
            write.write()
            self.broker.complete_flush(write, now_ms())

    def close(self) -> None:
        self._disk.close()


def filled(root: Path, wheel_ms: int) -> None:
    """A store with 13 segments: messages, timers in every state, halves in every state, acknowledgements."""
    shop = Shop(root)
    for topic in USER_TOPICS:
        shop.broker.topics.create(topic, MessageType.MIXED, 2, now_ms())
    for number in range(400):
        shop.send("orders", f"order {number} " + "x" * 1800, tag="paid", keys=(f"key-{number}",))
    fired = shop.send("reminders", "fired", delivery_ms=now_ms())
    shop.broker.tick(now_ms())
    shop.flush()
    recalled = shop.send("reminders", "recalled", delivery_ms=wheel_ms)
    shop.broker.timers.recall("reminders", recalled.recall_handle, now_ms())
    for number in range(3):
        shop.send("reminders", f"pending {number}", delivery_ms=wheel_ms)
    for end in (Resolution.COMMIT, Resolution.ROLLBACK, None, Resolution.COMMIT):
        half = shop.send("payments", f"half {end} {time.time_ns()}", transactional=True)
        if end is not None:
            shop.broker.transactions.end("payments", half.transaction_id, half.message_id, end, now_ms())
    deliveries = shop.broker.receiving.receive(
        "shop", "orders", EVERYTHING, 32, 60_000, "client", False, now_ms()
    ).deliveries
    for number, delivery in enumerate(deliveries):
        if number != 3:
            shop.broker.receiving.ack("shop", "orders", delivery.receipt_handle, now_ms())
    shop.flush()
    assert fired.recall_handle
    shop.close()


def copied_records(root: Path) -> dict[int, bytes]:
    """Every record of a store's log by its offset."""
    disk = RealDisk(root)
    records = {}
    for found in LogScan(disk, SEGMENT_BYTES):
        offset = found.record.physical_offset
        position = offset % SEGMENT_BYTES
        records[offset] = disk.read(layout.segment_path(offset - position), position, found.record_bytes)
    disk.close()
    return records


def messages(lines: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("of") == topic]


@pytest.mark.parametrize("abort", [True, False], ids=["with-abort", "after-a-clean-stop"])
def test_the_genuine_store_reads_every_message_and_delivers_only_what_waits(
    genuine: Any, tmp_path: Path, abort: bool
) -> None:
    source, target = tmp_path / "ours", tmp_path / "theirs"
    wheel_ms = (now_ms() // 1000 + 15) * 1000
    filled(source, wheel_ms)
    originals = copied_records(source)
    summary = export_store(source, target, silent, now_ms())
    assert (summary.segment_bytes, summary.pending_timer_count, summary.op_count) == (SEGMENT_BYTES, 3, 1)
    assert [(one.group, one.topic, one.count > 0) for one in summary.repeats] == [("shop", "orders", True)]
    if not abort:
        (target / "abort").unlink()
    lines = genuine.read(target, "reminders", 4)
    queues = {(one["queue"], one["queueId"]): (one["min"], one["max"]) for one in lines if "queue" in one}
    assert queues[("orders", 0)] == (0, 200)
    assert queues[("orders", 1)] == (0, 200)
    seen = {(line["of"], line["queueId"], line["queueOffset"]) for line in lines if "of" in line}
    for (topic, queue_id), (first, last) in queues.items():
        assert {(topic, queue_id, offset) for offset in range(first, last)} <= seen
    copied = [line for line in lines if "of" in line and line["physicalOffset"] in originals]
    assert len(copied) > 400
    for line in copied:
        assert base64.b64decode(line["bytes"]) == originals[line["physicalOffset"]]
    arrived = sorted(base64.b64decode(line["body"]) for line in messages(lines, "reminders"))
    assert arrived == [b"fired", b"pending 0", b"pending 1", b"pending 2"]
    [offsets] = [line["offsets"] for line in lines if "offsets" in line]
    assert offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {"0": 2}
    [op] = messages(lines, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert (base64.b64decode(op["body"]), op["properties"]["TAGS"]) == (b"3,", "d")
    assert sum(offsets["orders@shop"].values()) < 32


def test_what_was_imported_goes_back_byte_for_byte(
    genuine: Any, written: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    import_store(written[0], tmp_path / "ours", silent, now_ms())
    export_store(tmp_path / "ours", tmp_path / "theirs", silent, now_ms())
    before = {line["physicalOffset"]: line for line in genuine.read(written[0]) if "of" in line}
    after = {line["physicalOffset"]: line for line in genuine.read(tmp_path / "theirs") if "of" in line}
    assert len(before) > 140
    for name in ("batchconsumequeue", "consumequeue/orders"):
        for path in (written[0] / name).rglob("?" * 20):
            ours = (tmp_path / "theirs" / path.relative_to(written[0])).read_bytes()
            assert ours == path.read_bytes(), path
    for offset, line in before.items():
        assert after[offset]["bytes"] == line["bytes"]
        assert after[offset]["queueOffset"] == line["queueOffset"]


def test_behind_damage_the_genuine_store_reads_on(genuine: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "ours", tmp_path / "theirs"
    filled(source, now_ms() + 3_600_000)
    with (source / layout.segment_path(SEGMENT_BYTES)).open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        file.write(b"damaged")
    summary = export_store(source, target, silent, now_ms())
    assert len(summary.damaged) == 1
    lines = genuine.read(target)
    orders = messages(lines, "orders")
    bodies = {base64.b64decode(line["body"]).split(b"x")[0] for line in orders if line["topic"] == "orders"}
    assert len(bodies) == 399
    assert [line["topic"] for line in orders if line["topic"] != "orders"] == ["TW_SYS_DAMAGED"]
