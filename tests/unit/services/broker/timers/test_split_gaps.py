"""A timer that a split left out, since the disk cannot read its record, is not taken for ended.

The names of such timers are in no file of timers: the files that were split are gone, and the snapshot names
their gaps. A start that makes a damaged run of ends again must look at these gaps, too.
"""

from __future__ import annotations

from services.broker.broker import Broker
from tests.memory_disk import BLOCK_BYTES
from tests.unit.services.broker.timers.bad_sector import drained, go, no_jobs, on_bad_sector
from tests.unit.services.broker.timers.test_bad_sector import rows_of
from tests.unit.services.broker.timers.test_timer_repair import files
from tests.unit.services.broker.timers.test_timers import DAY, HOUR, by_id
from timingwheel.partition import WITH_RECORDS


def test_a_damaged_run_of_ends_ends_no_timer_that_a_split_has_left_out() -> None:
    store, disk = on_bad_sector()
    store.send("cancelled", 40 * DAY)
    for number in range(40):
        store.send(f"month {number}", 40 * DAY + number)
    store.checkpoint()
    store.broker.timers.cancel(by_id("cancelled"), "", store.now_ms)
    store.checkpoint()
    store.broker.timers.partitions._rows_max = 1
    [parent] = files(store)
    _, first = rows_of(store, parent, WITH_RECORDS)
    store.now_ms += 40 * DAY - 12 * HOUR
    disk.first = disk.end = (first // BLOCK_BYTES + 1) * BLOCK_BYTES  # a block of nothing but records
    disk.end += BLOCK_BYTES
    assert disk.end < disk.size(parent)
    disk.path = parent
    go(store, runs=no_jobs)
    assert parent not in [slot.path for slot in store.broker.timers.partitions.files], "it is split"
    disk.path = "none"
    [*_, ends] = store.broker.timers.ends.ends.runs
    disk.flip_bit(ends.path, 8 * 4200)
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert any(one.part == "ends" for one in store.broker.damage), "the damage is met"
    come = drained(store)
    assert store.broker.timer_views.lost() == []
    assert {f"month {number}" for number in range(40)} <= set(come)
    assert "cancelled" not in come
