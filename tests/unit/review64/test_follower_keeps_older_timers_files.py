"""A node that follows must not keep for ever what its starts found beside the files of its snapshot.

Expected: once all files of the snapshot are known to be sound, or after a bounded time, checkpoints delete
what no snapshot names; on a node that only follows, too. Found: `Mending.begin` is called where a node
leads alone, so `release_older` never comes: each restart of a follower adds the files that were split
between its two newest snapshots (a month's or a year's timers each), and none is ever deleted. No word is
told of it. Before 130a904b the start deleted them.
"""

from __future__ import annotations

from commitlog.layout import TIMERS
from commitlog.message import Message
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tests.unit.services.cluster.test_replica import Recorder, records_in

SETTINGS = BrokerSettings(segment_bytes=1 << 20, queue_count=1)


def test_a_node_that_follows_deletes_older_files_of_timers_in_the_end() -> None:
    disk, recorder = MemoryDisk(), Recorder()
    leader, follower = Broker.open(MemoryDisk(), SETTINGS, 0), Broker.recover(disk, SETTINGS, 0)
    leader.write_to(recorder)

    def follow(number: int) -> None:
        """A message that the leader sends, and a checkpoint of the follower, as `Replica.checkpoint`."""
        leader.sending.send(Message(topic="t", body=b"x", message_id=f"M{number}"), 0)
        while (flush := leader.take_flush()) is not None:
            flush.write()
            leader.flushed(flush, 0)
        found = [one for body in recorder.bodies for one in records_in(body)]
        recorder.bodies.clear()
        follower.take_in(found, leader.end_offset, 0)
        done = follower.checkpoint(0)
        done.write(disk)
        follower.checkpointed(done)

    for restarts in range(4):
        for number in range(4):
            follow(4 * restarts + number)
        # As the split of a slot leaves one, which only the snapshot before the newest names.
        disk.write(f"{TIMERS}/0-{16_000_000 + restarts:020}", 0, b"of 1970")
        follower = Broker.recover(disk, SETTINGS, 0, follower.end_offset)
    for number in range(90, 99):
        follow(number)
    assert disk.list(TIMERS) == []
