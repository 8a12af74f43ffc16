"""Checkpoints: what a snapshot names is there, and stays as long as the snapshot does."""

from __future__ import annotations

from errno import ENOSPC

import pytest

from commitlog import snapshot
from commitlog.memory_disk import Fault
from services.broker.broker import Broker
from tests.unit.services.broker.test_receiving import Bench
from tests.unit.services.broker.test_timers import HOUR, Store


def test_a_checkpoint_of_the_same_offset_leaves_what_the_older_snapshot_names() -> None:
    store = Store()
    for count in (1, 8):  # the second run of names takes the first one in
        for number in range(count):
            store.send(f"M{count}{number}", HOUR)
        store.checkpoint()
    store.checkpoint()  # nothing was appended since: it takes the newer snapshot's place
    _, newer = snapshot.offsets(store.disk)
    store.disk.flip_bit(snapshot.path_of(newer), 8 * (store.disk.size(snapshot.path_of(newer)) - 1))
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert store.broker.lost == []
    assert len(store.waiting()) == 9


def test_no_snapshot_counts_entries_of_queues_that_wait_for_room() -> None:
    """Found by the simulation of receiving, seed 332: every start then made the queues anew."""
    bench = Bench()
    bench.send()
    bench.disk.strike(1, Fault.FAILS, ENOSPC)  # the log has its room already
    bench.send()
    assert bench.disk.is_struck
    bench.disk.strike(1, Fault.FAILS, ENOSPC)
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    bench.disk.well()
    with pytest.raises(OSError, match="fails by the test"):
        checkpoint.write(bench.disk)
    bench.broker.checkpoint_failed(checkpoint)
    bench.checkpoint()
    bench.reopen()
    assert (bench.broker.made_anew, bench.ids()) == ([], ["M1", "M2"])
