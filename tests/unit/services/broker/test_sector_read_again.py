"""Timers of a sector that can be read again after a restart must come, too.

Expected: each timer comes once, though a sector could not be read when its time came, the rescue has not
ended by then, and the sector can be read again after the restart. Before, the gap is kept in the snapshot
only where its file was split ("that of others is met again where the file is read"). Others of the file
were delivered, so the frontier has passed the timers of the gap; the next process reads them as sound,
takes them for done, and nothing is told (EIO of one read is damage, which need not be met again).
"""

from __future__ import annotations

import pytest

from services.broker.broker import Broker
from services.broker.mending import Rescue
from services.broker.values import ReadTimers
from tests.unit.services.broker.test_bad_sector import BadSector, drained, on_bad_sector
from tests.unit.services.broker.test_mending import files
from tests.unit.services.broker.test_timers import HOUR, SECOND, Store
from timingwheel import partition
from timingwheel.partition import Window

A = [f"A{number:02}" for number in range(40)]
"""So many that their batch has more than one block (4 KiB)."""


def go_without_rescues(store: Store, by_ms: int) -> None:
    """Lets time pass while each rescue fails, as where the process is out of descriptors."""
    store.now_ms += by_ms
    for _ in range(30):
        for effect in store.broker.tick(store.now_ms):
            if not isinstance(effect, ReadTimers):
                continue
            if isinstance(effect.job, Rescue):
                store.broker.read_ahead_failed(effect.job)
            else:
                effect.job.run(store.disk)
                store.broker.read_ahead(effect.job)
        store.flush()
        if store.broker.is_checkpoint_due:
            store.checkpoint()


def delivered(store: Store) -> list[str]:
    return sorted(one.message_id for one in store.delivered())


def with_unread_batch() -> tuple[Store, BadSector]:
    """Timers in two batches of a file, of which the disk cannot read the first."""
    store, disk = on_bad_sector()
    base = HOUR - store.now_ms % HOUR + 10 * HOUR  # none lies beside a slot's end
    for name in A:
        store.send(name, base)
    store.checkpoint()
    store.send("B", base + SECOND)
    store.send("C", base + 10 * SECOND)
    store.checkpoint()
    [path] = files(store)
    first, *_ = partition.batches(Window(disk, path, disk.size(path)), [])
    disk.path, disk.first, disk.end = path, first.position, first.position + 40
    go_without_rescues(store, base + 5 * SECOND)
    return store, disk


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_timer_of_a_sector_that_can_be_read_again_after_a_restart_comes(is_checkpointed: bool) -> None:
    store, disk = with_unread_batch()
    assert delivered(store) == ["B"], "A is in the gap, and no rescue has come to an end"
    if is_checkpointed:
        store.checkpoint()
    disk.path = "none"
    disk.kill(lambda _: 0)
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert set(drained(store)) == {*A, "B", "C"}
    assert store.broker.gauges().pending_timers == 0


def test_a_timer_of_a_sector_that_stays_bad_comes() -> None:
    store, disk = with_unread_batch()
    store.checkpoint()
    disk.kill(lambda _: 0)
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert set(drained(store)) == {*A, "B", "C"}
