"""Timers whose records are met damaged late: a rescue decides, and until then they count as waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog import layout
from services.broker.spine.values import Verdict
from services.broker.timers.timer_repair import CheckJob
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.unit.services.broker.timers.bad_sector import go, no_jobs, on_bad_sector
from tests.unit.services.broker.timers.test_older_files import checkpoint_once, checkpoint_twice, kill
from tests.unit.services.broker.timers.test_timer_repair import (
    drained,
    files,
    forget_log,
    split_and_spoilt,
    spoil_batch,
    spoil_record,
)
from tests.unit.services.broker.timers.test_timers import DAY, HOUR, MINUTE, SECOND, Store, by_id
from timingwheel.due_run import ReadAhead


def without_checks(job: object) -> bool:
    return not isinstance(job, CheckJob)


def without_mends(job: object) -> bool:
    return isinstance(job, ReadAhead)


def due_and_damaged() -> Store:
    """A timer is due, its record is damaged, and an older file has it alone."""
    store, _ = split_and_spoilt()
    go(store, 13 * HOUR, without_mends)
    assert "month" not in [one.message_id for one in store.delivered()]
    return store


EVENTS: dict[str, list[Callable[[Store], None]]] = {
    "goes on": [],
    "checkpoints": [checkpoint_twice, checkpoint_once],
    "restart": [kill],
    "crash": [Store.crash],
    "restart behind it": [checkpoint_twice, kill],
    "restarts behind it": [checkpoint_twice, kill, checkpoint_twice, Store.crash, checkpoint_twice],
}


@pytest.mark.parametrize("events", EVENTS)
def test_what_delivery_meets_damaged_comes_from_an_older_file(events: str) -> None:
    store = due_and_damaged()
    for event in EVENTS[events]:
        event(store)
    assert "month" in drained(store)
    assert store.broker.timer_views.lost() == []
    assert store.broker.gauges().pending_timers == 0
    assert not store.broker.timer_repair.has_work, "it is decided"


def test_a_timer_in_doubt_can_be_cancelled() -> None:
    store = due_and_damaged()
    checkpoint_twice(store)
    kill(store)
    assert store.broker.timers.cancel(by_id("month"), "", store.now_ms).verdict is Verdict.CANCELLED
    assert "month" not in drained(store)
    assert store.broker.timer_views.lost() == []
    assert not store.broker.timer_repair.has_work


def test_a_timer_in_doubt_is_none_that_a_start_takes_for_ended_where_names_are_damaged() -> None:
    """A timer that has a name, does not wait and has no known end counts as ended at such a start."""
    store = due_and_damaged()
    checkpoint_twice(store)
    for folder in (layout.TIMER_NAMES, layout.TIMER_ENDS):
        for name in store.disk.list(folder):
            store.disk.flip_bit(f"{folder}/{name}", 8 * (4096 + 50))
    kill(store)
    assert "month" in drained(store)


@pytest.mark.parametrize("checkpoint_count", range(4))
def test_verify_knows_a_timer_in_doubt(checkpoint_count: int) -> None:
    store = due_and_damaged()
    for _ in range(checkpoint_count):
        checkpoint_once(store)
    found = verify(look_at(store.disk, "it"), store.now_ms).findings
    assert not [one.what for one in found if "timers" in one.what and "timers/" not in one.what]


@pytest.mark.parametrize("events", [[], [checkpoint_twice, kill], [kill]])
def test_a_split_copies_no_record_that_is_damaged(events: list[Callable[[Store], None]]) -> None:
    """The log has it still; when the timer is due, it has no more."""
    store = Store()
    for number in range(4):
        store.send(f"month {number}", 40 * DAY + number)
    store.checkpoint()
    store.broker.timers.partitions._rows_max = 1
    [parent] = files(store)
    spoil_record(store, parent)
    store.now_ms += 40 * DAY - 12 * HOUR
    go(store, runs=no_jobs)
    assert parent not in [slot.path for slot in store.broker.timers.partitions.files], "it is split"
    for event in events:
        event(store)
    go(store, MINUTE, without_checks)
    forget_log(store)
    go(store, 13 * HOUR, without_checks)
    assert {f"month {number}" for number in range(4)} <= {one.message_id for one in store.delivered()}
    assert store.broker.timer_views.lost() == []


def test_a_bad_sector_of_the_log_costs_the_timer_that_lies_there_and_no_other() -> None:
    store, disk = on_bad_sector()
    offsets = [store.send(f"T{number}", SECOND) for number in range(3)]
    path, position = store.broker.store.log.segments.place(offsets[1])
    disk.path, disk.first, disk.end = path, position + 100, position + 101
    go(store, 2 * SECOND)
    assert [one.message_id for one in store.delivered()] == ["T0", "T2"]
    assert [one.timer_offset for one in store.broker.timer_views.lost()] == [offsets[1]]
    (told,) = [one for one in store.broker.damage if one.part == "log"]
    assert told.what.startswith(f"The disk cannot read the record at log offset {offsets[1]} in {path}")


def test_a_bad_sector_of_the_log_ends_no_checkpoint() -> None:
    store, disk = on_bad_sector()
    offsets = [store.send(f"T{number}", HOUR) for number in range(60)]
    path, position = store.broker.store.log.segments.place(offsets[11])
    disk.path, disk.first, disk.end = path, position + 100, position + 101
    store.checkpoint()
    go(store)
    assert store.broker.gauges().pending_timers == 59
    assert [one.timer_offset for one in store.broker.timer_views.lost()] == [offsets[11]]
    disk.path = "none"
    assert len(drained(store)) == 59


def test_a_bad_sector_of_the_log_costs_a_mend_the_timer_that_lies_there() -> None:
    store, disk = on_bad_sector()
    offsets = [store.send(f"T{number}", HOUR + number * MINUTE) for number in range(3)]
    store.checkpoint()
    for path in files(store):
        spoil_batch(store, path, 0)
    store.broker.timer_repair.begin(store.now_ms)
    path, position = store.broker.store.log.segments.place(offsets[1])
    disk.path, disk.first, disk.end = path, position + 100, position + 101
    go(store)
    assert [one.timer_offset for one in store.broker.timer_views.lost()] == [offsets[1]]
    disk.path = "none"
    assert drained(store) == ["T0", "T2"]


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_disk_that_reads_nothing_while_timers_are_due_ends_none(is_near: bool, is_restarted: bool) -> None:
    store, disk = on_bad_sector()
    for number in range(3):
        store.send(f"T{number}", 3 * SECOND if is_near else HOUR + number)
    if not is_near:
        store.checkpoint()
        go(store, HOUR - SECOND)
    disk.is_dead = True
    for _ in range(3):
        go(store, 20 * SECOND)
    disk.is_dead = False
    assert store.delivered() == []
    if is_restarted:
        checkpoint_twice(store)
        kill(store)
    assert [one for one in drained(store) if one[0] == "T"] == ["T0", "T1", "T2"]
    assert store.broker.timer_views.lost() == []


def test_a_check_goes_on_where_it_cannot_be_read_whether_a_timer_has_ended() -> None:
    """It raised, which ended the process."""
    store = Store()
    store.send("cancelled", HOUR)
    store.send("kept", HOUR + 1)
    store.checkpoint()
    store.broker.timers.cancel(by_id("cancelled"), "", store.now_ms)
    store.checkpoint()
    [path] = files(store)
    spoil_record(store, path)
    for name in store.disk.list(layout.TIMER_ENDS):
        store.disk.flip_bit(f"{layout.TIMER_ENDS}/{name}", 8 * (4096 + 50))
    store.broker.timer_repair.begin(store.now_ms)
    go(store)
    assert drained(store) == ["kept"]
    assert store.broker.timer_views.lost() == []
    assert {"partition", "ends"} <= {one.part for one in store.broker.damage}
