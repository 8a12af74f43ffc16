"""A bad sector in a file of timers costs no more than a flipped bit there, and is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.broker.broker import Broker
from services.broker.spine.values import TimerVerdict
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.memory_disk import BLOCK_BYTES
from tests.unit.services.broker.timers.bad_sector import drained, filled, go, no_jobs, on_bad_sector
from tests.unit.services.broker.timers.test_timer_repair import IDS, files, forget_log, spoil_record
from tests.unit.services.broker.timers.test_timers import DAY, HOUR, Store, by_id
from timingwheel import partition
from timingwheel.partition import TOMBSTONE, WITH_RECORDS, Window


@pytest.mark.parametrize("how", ["sound", "flipped", "bad sector"])
def test_timers_are_delivered_where_the_disk_cannot_read_one_of_their_files(how: str) -> None:
    store, disk = on_bad_sector()
    for number, delay_ms in enumerate((HOUR, DAY, 3 * DAY, 40 * DAY)):
        store.send(f"T{number}", delay_ms)
    for number in range(2):
        store.send(f"at once {number}", None)
        store.checkpoint()
    path = f"timers/{disk.list('timers')[0]}"
    if how == "flipped":
        spoil_record(store, path)
    if how == "bad sector":
        disk.path, disk.first = path, 64
    assert {"T0", "T1", "T2", "T3"} <= set(drained(store)), "none waits for ever"
    if how == "bad sector":
        (told,) = [one for one in store.broker.damage if one.part == "partition"]
        assert told.path == path
        assert "The disk cannot read" in told.what
        assert "1 timers were rebuilt" in told.what


def rows_of(store: Store, path: str, kind: int) -> tuple[int, int]:
    """Where the last batch of a kind has its head and rows."""
    found = partition.batches(Window(store.disk, path, store.disk.size(path)), [])
    batch = next(one for one in reversed([*found]) if one.kind == kind)
    return batch.position, batch.position + partition.HEAD.size + batch.rows.nbytes


def records_of(store: Store, path: str, kind: int) -> tuple[int, int]:
    _, first = rows_of(store, path, WITH_RECORDS)
    return first, first + 8


Where = Callable[[Store, str, int], tuple[int, int]]
PLACES = [(rows_of, WITH_RECORDS), (rows_of, TOMBSTONE), (records_of, WITH_RECORDS)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 3),
    st.sampled_from(PLACES),
    st.one_of(st.integers(1, 12), st.just(1 << 62)),
    st.booleans(),
)
@example(3, (rows_of, WITH_RECORDS), 5, False).via("a cancelled timer came: its tombstone could not be read")
def test_each_timer_comes_once_however_often_the_read_fails(
    number: int, place: tuple[Where, int], failing_count: int, is_reopened: bool
) -> None:
    """A sector that can be read again may be met by one reader as damaged, and by the next as sound."""
    store, disk = filled()
    path = files(store)[number]
    where, kind = place
    disk.first, disk.end = where(store, path, kind)
    disk.path, disk.failing_count = path, failing_count
    if is_reopened:
        store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert drained(store) == sorted(IDS)
    assert store.broker.timer_views.lost() == []
    assert store.broker.gauges().pending_timers == 0


def test_what_the_sector_took_and_nobody_else_has_ends_and_is_listed() -> None:
    store, disk = filled()
    forget_log(store)
    disk.path = files(store)[-1]
    go(store)
    store.broker.timer_repair.begin(store.now_ms)
    go(store)
    verdict = store.broker.timers.get_timer(by_id("month"), store.now_ms)
    assert isinstance(verdict, TimerVerdict), "it has ended"
    assert len(store.broker.timer_views.lost()) == 1
    (told,) = [one for one in store.broker.damage if one.part == "partition"]
    assert told.lost_count == 1
    assert "The disk cannot read" in told.what
    assert "tidewheel timer ls --damaged" in told.what
    assert not verify(look_at(disk, "it"), store.now_ms).is_sound
    assert set(drained(store)) & set(IDS) == set(IDS) - {"month"}


def test_a_disk_that_reads_nothing_for_a_while_ends_no_timer() -> None:
    store, disk = filled()
    forget_log(store)
    disk.is_dead = True
    store.broker.timer_repair.begin(store.now_ms)
    assert go(store) > 0, "a rescue reads names and ends, too"
    disk.is_dead = False
    assert set(drained(store)) >= set(IDS)
    assert store.broker.timer_views.lost() == []


def test_a_split_copies_no_record_that_the_disk_cannot_read() -> None:
    """The copy would be zeros, and the file that has the record would be deleted."""
    store, disk = on_bad_sector()
    for number in range(40):
        store.send(f"month {number}", 40 * DAY + number)
    store.checkpoint()
    store.broker.timers.partitions._rows_max = 1
    forget_log(store)
    [parent] = files(store)
    _, first = rows_of(store, parent, WITH_RECORDS)
    store.now_ms += 40 * DAY - 12 * HOUR
    disk.first = disk.end = (first // BLOCK_BYTES + 1) * BLOCK_BYTES  # a block of nothing but records
    disk.end += BLOCK_BYTES
    assert disk.end < disk.size(parent)
    disk.path = parent
    go(store, runs=no_jobs)
    for _ in range(2):
        store.send(f"another {store.broker.end_offset}", None)
        store.checkpoint()
    assert parent not in [slot.path for slot in store.broker.timers.partitions.files], "it is split"
    disk.path = "none"
    assert {f"month {number}" for number in range(40)} <= set(drained(store))
    assert store.broker.timer_views.lost() == []
