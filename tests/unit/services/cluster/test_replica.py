"""What a node reads out of the shared log's bodies, and where a start of it begins."""

from __future__ import annotations

from dataclasses import replace

from commitlog import layout
from commitlog.message import Message
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.cluster.replica import go_back_to_checkpoint, records_in
from tests.memory_disk import MemoryDisk

SETTINGS = BrokerSettings(segment_bytes=4096, queue_count=1)


class Recorder:
    """A sink that keeps what came."""

    appends_max = 1

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def append(self, first_offset: int, parts: object, epoch: int) -> None:
        self.bodies.append(b"".join(one for one in parts if isinstance(one, bytes | bytearray)))  # type: ignore


def test_the_blanks_that_close_segments_are_no_records() -> None:
    core, recorder = Broker.open(MemoryDisk(), SETTINGS, 0), Recorder()
    core.write_to(recorder)
    for number in range(12):
        core.sending.send(Message(topic="t", body=b"x" * 900, message_id=f"M{number}"), 0)
    while (flush := core.take_flush()) is not None:
        flush.write()
        core.flushed(flush, 0)
    assert core.end_offset > 2 * SETTINGS.segment_bytes
    found = [one for body in recorder.bodies for one in records_in(body)]
    follower = Broker.recover(MemoryDisk(), SETTINGS, 0)
    follower.take_in(found, core.end_offset, 0)
    assert follower.finding.queue_range("t", 0) == (0, 12)


def test_nothing_behind_the_newest_checkpoint_is_believed_at_a_start() -> None:
    disk = MemoryDisk()
    core = Broker.open(disk, replace(SETTINGS, sync_flush=True), 0)
    core.sending.send(Message(topic="t", body=b"x", message_id="M1"), 0)
    while (flush := core.take_flush()) is not None:
        flush.write()
        core.flushed(flush, 0)
    assert layout.published(disk).offset > 0
    assert go_back_to_checkpoint(disk) == 0, "a checkpoint without the shared log's part is none"
    assert layout.published(disk).offset == 0
