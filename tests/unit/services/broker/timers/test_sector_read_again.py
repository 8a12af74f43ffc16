"""Timers of a sector that can be read again after a restart come, too.

A gap among timers that are due is kept in the snapshot until a rescue has ended: others of the file were
delivered, so the frontier has passed the timers of the gap, and a process that reads them as sound takes
them for done.
"""

from __future__ import annotations

import pytest

from services.broker.broker import Broker
from services.broker.timers.timer_repair import RepairJob
from tests.unit.services.broker.timers.bad_sector import BadSector, drained, go, on_bad_sector
from tests.unit.services.broker.timers.test_timer_repair import files
from tests.unit.services.broker.timers.test_timers import HOUR, SECOND, Store
from timingwheel import partition
from timingwheel.partition import Window

A = [f"A{number:02}" for number in range(40)]
"""So many that their batch has more than one block (4 KiB)."""


def without_rescues(job: object) -> bool:
    return not isinstance(job, RepairJob)


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
    go(store, base + 5 * SECOND, without_rescues)
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
