"""The mark of whole queues that could not be deleted is deleted later, on a node that follows, too.

The warning promises it ("The deletion is tried again"). As long as the mark stays, a restart believes the
files of the queues.
"""

from __future__ import annotations

from errno import EIO

import pytest

from commitlog.errors import StoreDamaged
from commitlog.layout import CONSUMEQUEUE, QUEUES_WHOLE
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tests.unit.services.cluster.test_replica import Recorder, split_records

SETTINGS = BrokerSettings(segment_bytes=1 << 20, queue_count=1, tail_entries_max=1)


class Sick(MemoryDisk):
    """A disk that fails to delete the mark for a moment."""

    is_sick = False

    def delete(self, path: str) -> None:
        if self.is_sick and path == QUEUES_WHOLE:
            raise OSError(EIO, "fails by the test", path)
        super().delete(path)


def test_a_node_that_follows_tries_again_to_delete_the_mark() -> None:
    disk, recorder = Sick(), Recorder()
    leader, follower = Broker.open(MemoryDisk(), SETTINGS, 0), Broker.recover(disk, SETTINGS, 0)
    leader.write_to(recorder)

    def follow(number: int, topic: str) -> None:
        leader.sending.send(Message(topic=topic, body=b"x", message_id=f"M{number}"), 0)
        while (flush := leader.take_flush()) is not None:
            flush.write()
            leader.complete_flush(flush, 0)
        found = [one for body in recorder.bodies for one in split_records(body)]
        recorder.bodies.clear()
        follower.append_replicated(found, leader.end_offset, 0)
        done = follower.checkpoint(0)
        done.write(disk)
        follower.complete_checkpoint(done)

    for number in range(12):
        follow(number, "tu"[number % 2])
    assert disk.size(QUEUES_WHOLE) > 0
    follower = Broker.recover(disk, SETTINGS, 0, follower.end_offset)
    paths = [f"{CONSUMEQUEUE}/{topic}/0/{0:020}" for topic in "tu"]
    disk.is_sick = True
    disk.flip_bit(paths[0], 3)
    with pytest.raises(StoreDamaged):
        follower.finding.read("t", 0, 0, 1)
    disk.is_sick = False
    assert any("The deletion is tried again" in one.what for one in follower.damage)
    for number in range(12, 90):
        follow(number, "u")
    disk.flip_bit(paths[1], 3)
    with pytest.raises(StoreDamaged):
        follower.finding.read("u", 0, 0, 1)
    assert disk.size(QUEUES_WHOLE) < 0
