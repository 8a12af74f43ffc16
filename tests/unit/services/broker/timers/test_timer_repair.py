"""Damaged files of timers: what they held is rebuilt and delivered once, or told and never pending again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.records import bulk, properties
from services.broker.broker import Broker
from services.broker.spine.values import RunTimersJob, TimerFilter, TimerName, TimerVerdict, Verdict
from services.broker.timers.timer_repair import RepairJob
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.unit.services.broker.timers.test_timers import DAY, HOUR, MINUTE, Store, by_id
from tidewheel import property_names
from timingwheel import partition
from timingwheel.due_run import ReadAhead
from timingwheel.partition import HEAD, WITH_RECORDS, Window

IDS = ("soon", "hour", "day", "month")
DELAYS = dict(zip(IDS, (30 * 1_000, HOUR, DAY, 40 * DAY), strict=True))


def filled() -> Store:
    """Timers near and far in files, one of them cancelled since, and one that shares its file."""
    store = Store()
    for message_id, delay_ms in DELAYS.items():
        store.send(message_id, delay_ms, key=f"key {message_id}")
        store.send(f"{message_id} cancelled", delay_ms + 1)
    store.checkpoint()
    for message_id in IDS:
        store.broker.timers.cancel(by_id(f"{message_id} cancelled"), "", store.now_ms)
    store.checkpoint()
    return store


def files(store: Store) -> list[str]:
    return [f"timers/{name}" for name in store.disk.list("timers")]


def spoil_batch(store: Store, path: str, number: int) -> None:
    """Flips a bit in the head of a file's batch."""
    found = list(partition.batches(Window(store.disk, path, store.disk.size(path)), []))
    store.disk.flip_bit(path, (found[number].position + HEAD.size + 3) * 8)


def spoil_record(store: Store, path: str) -> None:
    found = partition.batches(Window(store.disk, path, store.disk.size(path)), [])
    batch = next(one for one in found if one.kind == WITH_RECORDS)
    store.disk.flip_bit(path, (int(batch.rows["record_at"][0]) + 90) * 8)


def reopen(store: Store) -> None:
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)


def drained(store: Store) -> list[str]:
    for step_ms in (MINUTE, HOUR, 2 * HOUR, 2 * DAY, 60 * DAY):
        store.go(step_ms)
    return sorted(one.message_id for one in store.delivered())


def forget_log(store: Store) -> None:
    """The log's first segment is gone, as retention does it."""
    offset = 0
    while (
        store.disk.list(layout.COMMITLOG)[0] == f"{offset:020d}"
        and len(store.disk.list(layout.COMMITLOG)) < 2
    ):
        store.send(f"filler {store.broker.end_offset}", None)
    store.checkpoint()
    store.send("last", None)
    store.checkpoint()
    store.broker.store.may_begin_at = store.settings.segment_bytes
    store.send("very last", None)
    store.checkpoint()
    store.disk.delete(layout.segment_path(0))


@pytest.mark.parametrize("spoil", ["batch", "gone batch", "record", "zeros", "cut", "deleted"])
def test_a_damaged_partition_costs_nothing_while_the_log_has_its_records(spoil: str) -> None:
    for number in range(len(files(filled()))):
        store = filled()
        path = files(store)[number]
        match spoil:
            case "batch":
                spoil_batch(store, path, 0)
            case "gone batch":
                spoil_batch(store, path, 1)
            case "record":
                spoil_record(store, path)
            case "zeros":
                store.disk.write(path, 0, bytes(store.disk.size(path)))
            case "cut":
                store.disk.truncate(path, store.disk.size(path) // 2)
            case "deleted":
                store.disk.delete(path)
        assert not verify(look_at(store.disk, path), store.now_ms).is_sound
        reopen(store)
        assert drained(store) == sorted(IDS), path
        assert any(path in one.what for one in store.broker.damage), path
        assert store.broker.timer_views.lost() == []
        assert store.broker.gauges().pending_timers == 0


def test_damage_that_a_running_broker_meets_is_mended_while_it_runs() -> None:
    store = filled()
    store.go(0)
    for path in files(store):
        spoil_batch(store, path, 0)
    assert drained(store) == sorted(IDS)
    assert store.broker.statistics.timers_rebuilt == len(IDS)


def test_a_rescue_deletes_no_timer_again_whose_tombstone_is_in_memory() -> None:
    """Seed 161512 of the timers: a slot within the window of a damaged one was counted too low."""
    store = Store()
    store.send("far", 2 * DAY)
    store.checkpoint()
    (far,) = files(store)
    store.go(2 * DAY - 2 * HOUR)
    for number in range(9):
        store.send(f"near {number}", HOUR + number)
    store.checkpoint()
    assert far in files(store)
    assert len(files(store)) > 1
    store.broker.timers.cancel(by_id("near 0"), "", store.now_ms)
    store.flush()
    spoil_batch(store, far, 0)
    reopen(store)
    store.go(0)
    assert store.broker.statistics.timers_rebuilt == 1
    views, window = store.broker.timer_views, TimerFilter(from_ms=store.now_ms, until_ms=store.now_ms + DAY)
    assert views.count(window) == len(views.read_page(window, None, 100).timers) == 9


def test_a_start_forgets_no_timer_of_a_damaged_file_that_the_watermark_has_passed() -> None:
    """Seed 205 of the timers: a start that spilled names forgot what a rescue had still to look for."""
    store = Store()
    for message_id in ("day", "month"):
        store.send(message_id, DELAYS[message_id])
    store.checkpoint()
    spoil_batch(store, files(store)[0], 0)
    store.now_ms += DELAYS["month"]
    for _ in range(9):
        for effect in store.broker.tick(store.now_ms):
            if isinstance(effect, RunTimersJob) and isinstance(effect.job, ReadAhead):
                effect.job.run(store.disk)
                store.broker.complete_timers_job(effect.job)
        store.flush()
    assert [one.message_id for one in store.delivered()] == ["month"]
    store.checkpoint()
    store.send("later", None)
    reopen(store)
    store.go(0)
    assert sorted(one.message_id for one in store.delivered()) == ["day", "later", "month"]


def test_a_rebuilt_timer_is_found_by_its_names_and_survives_a_crash_at_any_step() -> None:
    for steps in range(6):
        store = filled()
        for path in files(store):
            spoil_batch(store, path, 0)
        reopen(store)
        for _ in range(steps):
            for effect in store.broker.tick(store.now_ms):
                if hasattr(effect, "job"):
                    effect.job.run(store.disk)
                    store.broker.complete_timers_job(effect.job)
            store.flush()
        store.crash()
        store.go(0)
        assert sorted(store.waiting()) == sorted(IDS)
        verdict = store.broker.timers.cancel(by_id("month"), "", store.now_ms)
        assert verdict.verdict is Verdict.CANCELLED
        assert drained(store) == sorted(set(IDS) - {"month"})


def test_what_nobody_has_any_more_is_told_listed_and_never_pending_again() -> None:
    store = filled()
    forget_log(store)
    path = files(store)[-1]
    spoil_batch(store, path, 0)
    reopen(store)
    due_ms = store.now_ms + DELAYS["month"]
    store.go(0)
    (lost,) = store.broker.timer_views.lost()
    assert (lost.due_ms, lost.ended_ms) == (due_ms, store.now_ms)
    (told,) = [one for one in store.broker.damage if one.part == "partition"]
    assert (told.path, told.lost_count, told.rebuilt_count) == (path, 1, 0)
    assert store.broker.gauges().pending_timers == len(IDS) - 1
    assert "month" not in store.waiting()
    verdict = store.broker.timers.get_timer(by_id("month"), store.now_ms)
    assert isinstance(verdict, TimerVerdict)
    assert verdict.verdict is Verdict.TOO_LATE
    store.crash()
    assert [one.timer_offset for one in store.broker.timer_views.lost()] == [lost.timer_offset], (
        "it is a record"
    )
    assert store.broker.gauges().pending_timers == len(IDS) - 1
    store.go(0)
    store.checkpoint()
    reopen(store)
    store.go(0)
    assert [one.timer_offset for one in store.broker.timer_views.lost()] == [lost.timer_offset]
    assert not store.broker.damage, "it is known"
    assert set(drained(store)) & set(IDS) == {*IDS} - {"month"}


def test_a_timer_that_no_checkpoint_could_read_ends_by_a_record() -> None:
    store = Store()
    offset = store.send("gone", HOUR)
    store.send("kept", HOUR)
    store.disk.flip_bit(layout.segment_path(0), 8 * (offset + 100))
    store.checkpoint()
    store.go(0)
    told = store.broker.timers.get_timer(by_id("gone"), store.now_ms)
    assert isinstance(told, TimerVerdict)
    assert (told.verdict, told.ended_offset > offset) == (Verdict.TOO_LATE, True)
    window = TimerFilter(from_ms=store.now_ms, until_ms=store.now_ms + DAY)
    for _ in range(2):
        assert store.broker.timers.get_timer(by_id("gone"), store.now_ms) == told
        assert [one.timer_offset for one in store.broker.timer_views.lost()] == [offset]
        assert store.broker.gauges().pending_timers == store.broker.timer_views.count(window) == 1
        assert store.waiting() == ["kept"]
        store.crash()
    assert drained(store) == ["kept"]
    verdict = verify(look_at(store.disk, "it"), store.now_ms)
    assert {one.part for one in verdict.findings if one.is_damage} == {"log"}


def test_a_rebuilt_timer_has_the_same_names_under_another_history() -> None:
    store = Store(timer_history_ms=HOUR)
    store.send("old", MINUTE, key="k")
    store.checkpoint()
    [path] = files(store)
    store.now_ms += 3 * HOUR
    store.send("new", MINUTE, key="k")
    store.broker.timers.fire(by_id("new"), store.now_ms)
    store.now_ms += 3 * HOUR
    spoil_batch(store, path, 0)
    reopen(store)
    store.go(0)
    by_key = TimerName("t", key="k")
    told = store.broker.timers.get_timer(by_key, store.now_ms)
    assert isinstance(told, TimerVerdict)
    assert told == replace(store.broker.timers.get_timer(by_id("old"), store.now_ms), message_id="")
    store.settings = replace(store.settings, timer_history_ms=400 * DAY)
    reopen(store)
    assert store.broker.timers.get_timer(by_key, store.now_ms) == told, (
        "whose the key is stands in its record"
    )


def split_and_spoilt() -> tuple[Store, str]:
    """A timer whose record an older file has alone: the log is cut, and the file of the split is damaged."""
    store = filled()
    store.broker.timers.partitions._rows_max = 1  # so that two timers are many, and are split
    store.now_ms += 40 * DAY - 12 * HOUR
    forget_log(store)
    before = files(store)
    store.go(0)
    (child,) = set(files(store)) - set(before)
    assert before[-1] in files(store), "the snapshot before names it"
    spoil_record(store, child)
    reopen(store)
    return store, before[-1]


def test_a_record_that_an_older_file_has_is_rebuilt_from_there() -> None:
    store, _ = split_and_spoilt()
    assert "month" in drained(store)
    assert store.broker.timer_views.lost() == []
    assert store.broker.statistics.timers_rebuilt == 1


def test_an_older_file_that_a_rescue_reads_is_deleted_once_its_timers_are_rebuilt() -> None:
    """Seed 161119 of the timers: a checkpoint deleted it in between, and the next tick failed."""
    store, parent = split_and_spoilt()
    let_a_rescue_find_all(store)
    store.checkpoint()
    store.send("another", None)
    store.checkpoint()
    assert parent in files(store), "nothing of it is rebuilt yet"
    assert "month" in drained(store)
    assert store.broker.timer_views.lost() == []
    store.checkpoint()
    assert parent not in files(store)


def let_a_rescue_find_all(store: Store) -> None:
    """Lets workers read until a rescue has; what it found is not rebuilt yet."""
    for _ in range(100):
        for effect in store.broker.tick(store.now_ms):
            if isinstance(effect, RunTimersJob):
                effect.job.run(store.disk)
                store.broker.complete_timers_job(effect.job)
                if isinstance(effect.job, RepairJob):
                    return
        store.flush()
    raise AssertionError("no rescue was wanted")


def test_timers_without_a_name_of_their_own_are_found_in_the_log() -> None:
    store = Store()
    for number in range(3):
        message = store.message("twin", HOUR + number * MINUTE)
        store.broker.sending.send(message, store.now_ms)
        store.flush()
        store.now_ms += 11 * MINUTE
    store.checkpoint()
    count = store.broker.gauges().pending_timers
    for path in files(store):
        spoil_batch(store, path, 0)
    reopen(store)
    assert len(drained(store)) == count > 1


@pytest.mark.parametrize("folder", [layout.TIMER_NAMES, layout.TIMER_ENDS])
@pytest.mark.parametrize("fault", ["block", "cut", "deleted"])
def test_names_and_ends_are_made_again_at_a_start(folder: str, fault: str) -> None:
    store = filled()
    for name in store.disk.list(folder):
        path = f"{folder}/{name}"
        match fault:
            case "block":
                store.disk.flip_bit(path, 8 * (4096 + 50))
            case "cut":
                store.disk.truncate(path, 100)
            case "deleted":
                store.disk.delete(path)
    reopen(store)
    assert {one.path for one in store.broker.damage} >= {
        f"{folder}/{name}" for name in store.disk.list(folder)
    }
    assert store.broker.damage
    for message_id in IDS:
        found = store.broker.timers.get_timer(by_id(f"{message_id} cancelled"), store.now_ms)
        assert isinstance(found, TimerVerdict)
        assert found.verdict is Verdict.ALREADY
    assert sorted(
        one.message_id for one in store.broker.timer_views.read_page(TimerFilter(), None, 9).timers
    ) == sorted(IDS)
    assert store.broker.timers.cancel(by_id("day"), "", store.now_ms).verdict is Verdict.CANCELLED
    store.checkpoint()
    reopen(store)
    assert not store.broker.damage, "the runs were written anew"
    assert drained(store) == sorted(set(IDS) - {"day"})


def test_a_record_of_the_log_below_the_snapshot_that_is_damaged_is_told_without_anybody_reading_it() -> None:
    store = Store()
    offset = store.send("m", None)
    store.send("n", None)
    store.checkpoint()
    store.disk.flip_bit(layout.segment_path(0), 8 * (offset + 100))
    reopen(store)
    store.go(0)
    store.go(0)
    assert [one.part for one in store.broker.damage] == ["log"]


def test_a_checkpoint_that_failed_costs_no_mended_timer() -> None:
    store = filled()
    for path in files(store):
        spoil_batch(store, path, 0)
    reopen(store)
    store.go(0)
    checkpoint = store.broker.checkpoint(store.now_ms)
    store.broker.abandon_checkpoint(checkpoint)
    assert drained(store) == sorted(IDS)


def test_the_last_byte_of_a_record_counts() -> None:
    content = bytearray(_stored(filled().disk))
    ends = np.array([len(content)])
    assert bulk.are_sound(content, np.array([0]), ends).all()
    content[-1] ^= 1
    assert not bulk.are_sound(content, np.array([0]), ends).any()


def _stored(disk: Disk) -> bytes:
    path = f"timers/{disk.list('timers')[0]}"
    batch = next(partition.batches(Window(disk, path, disk.size(path)), []))
    row = batch.rows[0]
    return disk.read(path, int(row["record_at"]), int(row["record_bytes"]))


def test_a_rebuilt_timer_says_why_in_the_log() -> None:
    store = filled()
    for path in files(store):
        spoil_batch(store, path, 0)
    reopen(store)
    store.go(0)
    log = store.broker.store.log
    newest = [store.broker.timers.get_timer(by_id(one), store.now_ms) for one in IDS]
    offsets = [one.timer_offset for one in newest if not isinstance(one, TimerVerdict)]
    reasons = [properties.value_of(log.read(one).properties, property_names.REASON) for one in offsets]
    assert len(reasons) == len(IDS)
    assert all("was damaged" in one for one in reasons)


def test_the_watermark_passes_a_timer_that_was_delivered_from_the_log_as_its_row_was_damaged() -> None:
    """Else a start would take it for one that waits."""
    store = Store()
    last = store.send("last", MINUTE)
    store.checkpoint()
    store.go(0)  # all files are checked, and sound
    for path in files(store):
        spoil_record(store, path)
    store.go(2 * MINUTE)
    assert [one.message_id for one in store.delivered()] == ["last"]
    assert store.broker.timers.partitions.watermark >= (store.now_ms - MINUTE, last)
    store.checkpoint()
    store.crash()
    store.go(MINUTE)
    assert [one.message_id for one in store.delivered()] == ["last"]


def test_a_timer_whose_record_the_log_has_lost_is_not_counted_off_by_the_one_that_took_its_place() -> None:
    store = Store()
    offset = store.send("lost", HOUR, "k")
    store.send("another", HOUR, "k")
    store.disk.flip_bit(layout.segment_path(0), 8 * (offset + 100))
    reopen(store)
    assert [(one.first_offset <= offset < one.end_offset) for one in store.broker.damaged] == [True]
    assert store.waiting() == ["another"]
    assert store.broker.gauges().pending_timers == 1
    assert drained(store) == ["another"]
    assert store.broker.gauges().pending_timers == 0


def test_a_timer_without_a_record_is_lost_when_it_is_due_if_a_crash_took_the_record_of_its_end() -> None:
    for is_read_again in (False, True):
        store = Store()
        offset = store.send("gone", HOUR)
        store.send("kept", HOUR)
        store.disk.flip_bit(layout.segment_path(0), 8 * (offset + 100))
        checkpoint = store.broker.checkpoint(store.now_ms)
        checkpoint.write(store.disk)
        store.crash()
        assert store.broker.gauges().pending_timers == 2
        if is_read_again:
            store.disk.flip_bit(layout.segment_path(0), 8 * (offset + 100))
        assert drained(store) == (["gone", "kept"] if is_read_again else ["kept"])
        assert len(store.broker.timer_views.lost()) == (not is_read_again)
        assert store.broker.gauges().pending_timers == 0


@pytest.mark.parametrize("is_taken_before", [True, False])
def test_a_file_of_the_key_index_that_a_merge_took_up_while_it_waited_to_be_checked_is_not_damaged(
    is_taken_before: bool,
) -> None:
    store = filled()
    reopen(store)
    repair, keys = store.broker.timer_repair, store.broker.store.keys
    checked = set(keys.runs)
    assert checked
    job = repair.next_job() if is_taken_before else None
    while checked & set(keys.runs) or any(store.disk.size(run.path) >= 0 for run in checked):
        for _ in range(8):
            store.send(f"m{store.broker.end_offset}", None)
        store.checkpoint()
    while (job := job or repair.next_job()) is not None:
        job.run(store.disk)
        repair.complete_job(job)
        repair.allow_check()
        job = None
    assert keys.damage == ""
    store.checkpoint()
    reopen(store)
    assert store.broker.rebuilt_files == []
