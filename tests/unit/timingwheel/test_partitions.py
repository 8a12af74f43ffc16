"""Compares the upper levels with a set during changes, checkpoints, reads, clock jumps, and crashes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.limits import TIMERS_UNWRITTEN_MAX
from tests.memory_disk import MemoryDisk
from timingwheel.boundaries import Numbers
from timingwheel.partition import IN_LOG, ROW, Rows
from timingwheel.partitions import Partitions

from .caller import FOREVER_MS, Caller, fetch, record_of

DAY_MS = 86_400_000
START_MS = 1_763_700_000_123
SCALES_MS = (60, 40_000, 40_000, 2_000_000, 2_000_000, 100_000_000, 3_000_000_000, 3 * 10**11)
ACTIONS = {
    "put": 24,
    "put_many": 4,
    "cancel": 14,
    "look": 8,
    "read": 6,
    "deliver": 10,
    "begin": 8,
    "write": 8,
    "end": 8,
    "fail": 2,
    "pass": 8,
    "advance": 3,
    "crash": 2,
}


def act(caller: Caller, action: str, number: int) -> None:
    if action == "put":
        caller.put(caller.now_ms + number)
    elif action == "put_many":
        caller.put_many([caller.now_ms + number + step * number // 7 for step in range(8)])
    elif action == "cancel" and caller.pending:
        caller.cancel(sorted(caller.pending)[number % len(caller.pending)])
    elif action == "look":
        caller.look()
    elif action == "read":
        caller.read()
    elif action == "deliver":
        caller.look()
        caller.deliver(1 + number % 4)
    elif action == "begin":
        caller.begin_checkpoint()
    elif action == "write":
        caller.write_checkpoint()
    elif action in ("end", "fail"):
        caller.end_checkpoint(fails=action == "fail")
    elif action == "pass":
        caller.now_ms += number
    elif action == "advance":
        caller.now_ms += number
        settle(caller)
    elif action == "crash":
        caller.crash()


def settle(caller: Caller) -> None:
    caller.settle()
    assert not [sort_key for sort_key in caller.pending if sort_key[0] <= caller.now_ms]
    assert not caller.partitions.is_waiting


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 6))
def test_agrees_with_a_set(seed: int, rows_max: int) -> None:
    chance = Random(seed)
    caller = Caller(MemoryDisk(), START_MS, rows_max)
    scales_ms = chance.sample(SCALES_MS, 3)
    for action in chance.choices(list(ACTIONS), list(ACTIONS.values()), k=120):
        act(caller, action, chance.randrange(chance.choice(scales_ms)))
        if chance.random() < 0.3:
            agree(caller)
    run_out(caller)


def agree(caller: Caller) -> None:
    """Verify that the listed and counted timers are exactly the pending timers."""
    expected = sorted(caller.pending)
    assert caller.listed() == expected
    assert caller.partitions.count(0, FOREVER_MS) == len(expected)
    middle = expected[len(expected) // 2] if expected else (START_MS, 0)
    assert caller.partitions.count(0, middle[0]) == len([p for p in expected if p[0] < middle[0]])
    assert caller.listed(after=middle) == [sort_key for sort_key in expected if sort_key > middle]


def run_out(caller: Caller) -> None:
    """Advance from event to event until no timer is pending, without making a call before its time."""
    caller.end_checkpoint()
    settle(caller)  # A read that is in progress is completed first.
    for _ in range(500):
        upcoming_ms = caller.partitions.next_advance_ms(caller.now_ms)
        times = [time for time in (upcoming_ms, *(due for due, _ in caller.wheel)) if time is not None]
        if not times:
            break
        caller.now_ms = max(caller.now_ms, min(times))
        settle(caller)
    assert not caller.pending
    assert not caller.partitions.damage


def filled(delays_ms: list[int], rows_max: int = 5) -> Caller:
    """Return a caller that has written all of its timers to files."""
    caller = Caller(MemoryDisk(), START_MS, rows_max)
    caller.put_many([START_MS + delay_ms for delay_ms in delays_ms])
    write(caller)
    return caller


def write(caller: Caller) -> None:
    caller.begin_checkpoint()
    caller.end_checkpoint()


def test_a_crowded_slot_is_delivered_in_due_order_in_bounded_reads() -> None:
    count, rows_max = 1_000_000, 250_000
    rng = np.random.default_rng(5)
    dues = START_MS // 1000 * 1000 + 60_000 + rng.integers(0, 1000, count).astype(np.uint64)
    disk = MemoryDisk()
    partitions = Partitions(disk, START_MS, rows_max)
    partitions.put(list(zip(dues.tolist(), range(1, count + 1), strict=True)))
    checkpoint = partitions.to_write(START_MS)
    checkpoint.write(disk, lambda offsets: (bare(offsets), [b""] * len(offsets)))
    partitions.written(checkpoint)
    now_ms, taken, jobs = START_MS + 70_000, [], 0
    while (job := partitions.advance(now_ms).job) is not None or len(taken) == 0:
        if job is not None:
            job.run(disk)
            assert len(job.rows) <= rows_max
            partitions.complete_read_ahead(job)
            jobs += 1
        while len(rows := partitions.take_due(now_ms, 10_000)[0]):
            taken.append(rows[["due_ms", "timer_offset"]].copy())
    found = np.concatenate(taken)
    expected = np.lexsort((np.arange(count), dues))
    assert jobs == 4
    assert np.array_equal(found["timer_offset"], expected + 1)
    assert np.array_equal(found["due_ms"], dues[expected])


def bare(offsets: Numbers) -> Rows:
    rows = np.zeros(len(offsets), ROW)
    rows["timer_offset"] = offsets
    return rows


def test_ten_idle_years_cost_no_disk_and_few_steps() -> None:
    caller = filled([10 * 366 * DAY_MS])
    jumps = 0
    while caller.pending:
        upcoming_ms = caller.partitions.next_advance_ms(caller.now_ms)
        assert upcoming_ms is not None
        caller.now_ms = max(caller.now_ms, upcoming_ms)
        caller.settle()
        jumps += 1
    assert caller.delivered == [(START_MS + 10 * 366 * DAY_MS, 1)]
    assert jumps <= 8


def test_empty_boundaries_jump_over_ten_years_at_once() -> None:
    caller = Caller(MemoryDisk(), START_MS)
    caller.now_ms += 3660 * DAY_MS
    caller.look()
    assert caller.partitions.next_advance_ms(caller.now_ms) is None
    assert 8_192 < caller.partitions.near_until_ms - caller.now_ms <= 8_192 + 16_384
    assert caller.disk.list("timers") == []


def test_after_downtime_upper_slots_are_read_as_they_are() -> None:
    delays_ms = [day * DAY_MS // 3 + step for day in range(90) for step in (9_000, 7_000, 8_000)]
    caller = filled(delays_ms, rows_max=2)
    names = set(caller.disk.list("timers"))
    caller.now_ms += 31 * DAY_MS
    caller.crash()
    caller.settle()
    assert not caller.pending
    assert caller.delivered == sorted((START_MS + delay, n) for n, delay in enumerate(delays_ms, 1))
    assert set(caller.disk.list("timers")) <= names, "no slot was split"


def test_timers_set_into_a_passing_slot_come_in_their_turn_also_after_a_crash() -> None:
    caller = filled([5 * DAY_MS + step * 1000 for step in range(9)], rows_max=2)
    caller.now_ms += 8 * DAY_MS
    caller.look()
    caller.read()
    assert caller.deliver(1)
    caller.put(START_MS + 5 * DAY_MS + 3_500)
    write(caller)
    caller.cancel((START_MS + 5 * DAY_MS + 6_000, 7))
    caller.crash()
    caller.settle()
    assert [offset for _, offset in caller.delivered] == [1, 2, 3, 4, 10, 5, 6, 8, 9]


def test_files_go_when_neither_of_the_two_last_snapshots_names_them() -> None:
    caller = filled([60_000])
    (name,) = caller.disk.list("timers")
    caller.now_ms += 120_000
    caller.settle()
    caller.partitions.watermark = (caller.now_ms, 0)
    write(caller)
    assert caller.disk.list("timers") == [name]
    write(caller)
    assert caller.disk.list("timers") == []


def test_what_a_missing_or_short_file_lacks_is_damage_that_is_told() -> None:
    caller = filled([60_000, 5 * DAY_MS])
    frozen, _ = caller.snapshot
    name = caller.disk.list("timers")[0]
    length = caller.disk.size(f"timers/{name}")
    caller.disk.truncate(f"timers/{name}", 10)
    partitions = Partitions(caller.disk, START_MS)
    partitions.adopt(frozen, START_MS)
    assert len(list(partitions.scan(0, 1 << 62))) == 1
    assert [(gap.path, gap.end) for gap in partitions.damage] == [(f"timers/{name}", length)]
    assert partitions.count(0, 1 << 62) == 1
    partitions.mended(list(partitions.damage), is_all_there=True)
    assert partitions.count(0, 1 << 62) == 1


def test_a_file_beside_those_of_a_snapshot_stays_until_nothing_is_in_doubt() -> None:
    caller = filled([60_000, 5 * DAY_MS])
    older = "3-00000000000000000000"
    caller.disk.write_synced(f"timers/{older}", 0, b"older")
    caller.crash()
    for _ in range(3):
        caller.put(caller.now_ms + DAY_MS)
        write(caller)
        assert older in caller.disk.list("timers")
    caller.partitions.release_older()
    write(caller)
    assert older not in caller.disk.list("timers")


def test_what_a_failed_checkpoint_left_is_cut_off_by_the_next() -> None:
    """The failed checkpoint writes more bytes than the next checkpoint."""
    caller = filled([60_000])
    caller.put_many([START_MS + 60_001] * 9)
    caller.begin_checkpoint()
    caller.disk.failing_syncs = 1
    checkpoint, caller.checkpoint = caller.checkpoint, None
    with pytest.raises(OSError, match="sync failed"):
        checkpoint.write(caller.disk, fetch)
    caller.partitions.failed(checkpoint)
    for offset in range(2, 11):
        caller.cancel((START_MS + 60_001, offset))
    caller.put(START_MS + 60_002)
    write(caller)
    assert caller.listed() == sorted(caller.pending) == [(START_MS + 60_000, 1), (START_MS + 60_002, 11)]
    (frozen, _), (name,) = caller.snapshot, caller.disk.list("timers")
    assert caller.disk.size(f"timers/{name}") == frozen["files"][name][0]
    assert not caller.partitions.damage


def test_a_timer_that_came_during_a_failed_checkpoint_is_looked_at_in_time() -> None:
    upcoming_ms = []
    for fails in (False, True):
        caller = filled([60 * DAY_MS])
        caller.settle()
        caller.partitions.next_advance_ms(caller.now_ms)
        if fails:
            caller.begin_checkpoint()
        caller.put(START_MS + DAY_MS)
        caller.end_checkpoint(fails=fails)
        caller.look()
        upcoming_ms.append(caller.partitions.next_advance_ms(caller.now_ms))
    assert upcoming_ms[0] == upcoming_ms[1]


def test_a_damaged_file_is_told_of_and_kept_after_its_split() -> None:
    caller = filled([5 * DAY_MS])
    write(caller)
    caller.put(START_MS + 5 * DAY_MS + 1)
    write(caller)
    (name,) = caller.disk.list("timers")
    caller.disk.flip_bit(f"timers/{name}", 8 * 40)
    caller.pending.discard((START_MS + 5 * DAY_MS, 1))
    caller.now_ms += 5 * DAY_MS - 3_600_000
    for _ in range(4):
        caller.settle()
        write(caller)
    assert caller.listed() == [(START_MS + 5 * DAY_MS + 1, 2)]
    assert len(caller.partitions.damage) == 1
    assert name in caller.partitions.damage[0].path
    assert name in caller.disk.list("timers")
    caller.crash()
    assert name in caller.disk.list("timers")


def test_a_split_copies_no_damaged_record() -> None:
    """A timer with a damaged record is stored without the record, which is then read from the log."""
    dues_ms = [START_MS + 5 * DAY_MS + number for number in range(9)]
    caller = filled([due_ms - START_MS for due_ms in dues_ms])
    path, row = caller.partitions.find(dues_ms[1], 2) or ("", [])
    caller.disk.flip_bit(path, 8 * int(row["record_at"][0]))
    caller.now_ms += 5 * DAY_MS - 3_600_000
    unreadable = []
    for _ in range(3):
        caller.look()
        caller.read()
        checkpoint = caller.partitions.to_write(caller.now_ms)
        checkpoint.write(caller.disk, fetch)
        checkpoint.delete_unused(caller.disk)
        unreadable += checkpoint.unreadable
        caller.partitions.written(checkpoint)
    assert path.removeprefix("timers/") not in caller.disk.list("timers"), "it was split"
    assert [(one.due_ms, one.timer_offset, one.path) for one in unreadable] == [(dues_ms[1], 2, path)]
    assert [offset for _, offset in caller.listed()] == [*range(1, 10)]
    found = {offset: caller.partitions.find(dues_ms[offset - 1], offset) for offset in range(1, 10)}
    assert [one for one, (_, row) in found.items() if row["record_at"][0] == IN_LOG] == [2]


@pytest.mark.parametrize("cut_to", [None, 0, 200])
def test_what_a_split_file_has_lost_is_told_again_after_a_start(cut_to: int | None) -> None:
    """The timer simulation found this failure with seed 39.

    Three timers were never delivered, because the lost file was no longer listed anywhere.
    """
    caller = filled([5 * DAY_MS])
    write(caller)
    for number in range(9):
        caller.put(START_MS + 5 * DAY_MS + 1 + number)
        write(caller)
    (name,) = caller.disk.list("timers")
    path = f"timers/{name}"
    caller.disk.delete(path) if cut_to is None else caller.disk.truncate(path, cut_to)
    caller.now_ms += 5 * DAY_MS - 3_600_000
    for _ in range(4):
        caller.settle()
        write(caller)
    damage = [*caller.partitions.damage]
    assert [gap.path for gap in damage] == [path]
    assert name not in caller.snapshot[0]["files"], "it was split"
    caller.crash()
    assert [*caller.partitions.damage] == damage
    caller.partitions.mended(damage, is_all_there=True)
    write(caller)
    caller.crash()
    assert [*caller.partitions.damage] == []


def test_a_timer_that_cannot_be_fetched_is_told_of_and_the_others_are_written() -> None:
    caller = Caller(MemoryDisk(), START_MS)
    caller.put_many([START_MS + 60_000 + number for number in range(5)])
    checkpoint = caller.partitions.to_write(START_MS)
    checkpoint.write(caller.disk, lambda offsets: fetch(offsets[offsets != 3]))
    caller.partitions.written(checkpoint)
    [unreadable] = checkpoint.unreadable
    assert [offset for _, offset in caller.listed()] == [1, 2, 3, 4, 5], "its caller is to end it"
    caller.partitions.delete(unreadable.due_ms, unreadable.timer_offset)
    assert [offset for _, offset in caller.listed()] == [1, 2, 4, 5]
    assert caller.partitions.count(0, START_MS + DAY_MS) == 4


def test_a_timer_is_found_in_its_file_with_its_record() -> None:
    caller = filled([60_000, 5 * DAY_MS, 61_000])
    path, rows = caller.partitions.find(START_MS + 61_000, 3) or ("", [])
    assert caller.disk.read(path, int(rows["record_at"][0]), int(rows["record_bytes"][0])) == record_of(3)
    assert caller.partitions.find(START_MS + 61_000, 2) is None
    assert caller.partitions.find(START_MS + DAY_MS, 3) is None


def test_a_read_that_failed_comes_again_in_a_second() -> None:
    caller = filled([60_000])
    caller.now_ms += 60_000
    caller.look()
    assert caller.partitions.is_waiting
    caller.partitions.abandon_read_ahead(caller.job)
    assert caller.partitions.advance(caller.now_ms).job is None
    assert caller.partitions.next_advance_ms(caller.now_ms) == caller.now_ms + 1_000
    caller.now_ms += 1_000
    caller.settle()
    assert not caller.pending


def test_so_much_in_memory_that_it_should_be_written_is_told() -> None:
    partitions = Partitions(MemoryDisk(), START_MS)
    partitions.put([(START_MS + DAY_MS + offset, offset) for offset in range(1, TIMERS_UNWRITTEN_MAX)])
    assert not partitions.wants_checkpoint
    partitions.put([(START_MS + DAY_MS, TIMERS_UNWRITTEN_MAX)])
    assert partitions.wants_checkpoint
