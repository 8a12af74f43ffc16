"""Timers of the wheel that are due together go as columns, or one by one: nobody can tell which."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from commitlog import layout, limits
from services.broker.spine.encoded_batch import EncodedBatch
from services.broker.spine.values import Resolution
from tests.simulation.tables import tables
from tests.unit.services.broker.timers.test_timers import HOUR, SECOND, Store, by_id

COUNT = 60


def crowd(due_in_ms: int = SECOND) -> tuple[Store, list[int]]:
    """A store with timers due within milliseconds, the later ones first; their offsets."""
    store = Store()
    offsets = []
    for number in range(COUNT):
        due_ms = due_in_ms + (COUNT - number) // 8
        message = store.message(f"m{number:02d}", due_ms, f"k{number}" if number % 5 else "")
        if number % 3 == 0:
            message.keys = (f"one-{number}", "two", "three", "four")
        else:
            message.tag = "red"
        offsets.append(store.broker.sending.send(message, store.now_ms).physical_offset)
    store.flush()
    store.broker.timers.move(by_id("m07"), store.now_ms + due_in_ms, store.now_ms)  # is decoded, not cut
    store.broker.timers.cancel(by_id("m08"), "", store.now_ms)
    store.flush()
    return store, offsets


def log_of(store: Store) -> list[bytes]:
    folder = layout.COMMITLOG
    return [store.disk.read(f"{folder}/{name}", 0, 1 << 30) for name in store.disk.list(folder)]


@pytest.mark.parametrize("hurt", [(), (20,), (0, 31, 59)], ids=["sound", "one-damaged", "three-damaged"])
def test_a_run_leaves_what_one_by_one_leaves(hurt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    logs, left, delivered = [], [], []
    for run_min in (1, 1_000):
        monkeypatch.setattr(limits, "TIMER_RUN_MIN", run_min)
        store, offsets = crowd()
        for number in hurt:
            path, position = store.broker.store.log.segments.place(offsets[number])
            store.disk.flip_bit(path, (position + 100) * 8)
        store.go(SECOND - 1)
        assert store.delivered() == []
        with patch.object(store.broker.store, "append", wraps=store.broker.store.append) as append:
            store.go(2 * SECOND)
        assert any(isinstance(call.args[0], EncodedBatch) for call in append.call_args_list) is (
            run_min == 1 and not hurt
        )
        delivered.append([one.message_id for one in store.delivered()])
        assert len(store.broker.timers.lost) == len(hurt)
        assert store.waiting() == []
        logs.append(log_of(store))
        left.append((tables(store.broker), store.broker.statistics))
    assert delivered[0] == delivered[1]
    assert len(delivered[0]) == COUNT - 1 - len(hurt)
    assert logs[0] == logs[1]
    assert left[0] == left[1]


@pytest.mark.parametrize("hurt", [(), (20,), (0, 31, 59)], ids=["sound", "one-damaged", "three-damaged"])
@pytest.mark.parametrize("is_in_log", [True, False], ids=["log-has-them", "log-damaged-too"])
def test_a_run_of_a_partition_leaves_what_one_by_one_leaves(
    hurt: tuple[int, ...], is_in_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, left, delivered = [], [], []
    for run_min in (1, 1_000):
        monkeypatch.setattr(limits, "TIMER_RUN_MIN", run_min)
        store, offsets = crowd(due_in_ms=HOUR)
        store.checkpoint()
        for number in hurt:
            hurt_in_partition(store, store.now_ms + HOUR + (COUNT - number) // 8, offsets[number])
            if not is_in_log:
                path, position = store.broker.store.log.segments.place(offsets[number])
                store.disk.flip_bit(path, (position + 100) * 8)
        store.go(HOUR - 1)
        with patch.object(store.broker.store, "append", wraps=store.broker.store.append) as append:
            store.go(SECOND)
        assert any(isinstance(call.args[0], EncodedBatch) for call in append.call_args_list) is (run_min == 1)
        came = [one.message_id for one in store.delivered()]
        delivered.append(sorted(came) if hurt else came)  # of a run the damaged go first
        assert store.broker.damage.unreadable_records >= len(hurt)
        logs.append(log_of(store))
        left.append((tables(store.broker), store.broker.statistics))
    assert delivered[0] == delivered[1]
    assert len(delivered[0]) == COUNT - 1 - (0 if is_in_log else len(hurt))
    if not hurt:
        assert logs[0] == logs[1]
        assert left[0] == left[1]


def hurt_in_partition(store: Store, due_ms: int, timer_offset: int) -> None:
    """Flip a bit in the body of a timer's record in its partition."""
    found = store.broker.timers.partitions.find(due_ms, timer_offset)
    assert found is not None
    path, rows = found
    store.disk.flip_bit(path, (int(rows[0]["record_at"]) + 100) * 8)


def test_a_run_comes_in_the_order_of_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_RUN_MIN", 1)
    store, offsets = crowd()
    store.go(2 * SECOND)
    due = {f"m{number:02d}": (COUNT - number) // 8 for number in range(COUNT)} | {"m07": 0}
    came = [one.message_id for one in store.delivered()]
    assert [due[one] for one in came] == sorted(due[one] for one in came)
    assert came.index("m53") < came.index("m54")  # at one time, in the order in which they were set
    assert len(offsets) == COUNT
    assert len(came) == COUNT - 1


@pytest.mark.parametrize("due_ms", [-1, -5 * SECOND, -HOUR])
def test_what_is_set_late_is_late_from_its_setting_in_a_run_too(
    due_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    for run_min in (1, 1_000):
        monkeypatch.setattr(limits, "TIMER_RUN_MIN", run_min)
        store = Store()
        store.go(HOUR)
        store.now_ms += 10 * SECOND  # nobody has ticked since
        for number in range(COUNT):
            message = store.message(f"m{number:02d}", due_ms)
            store.broker.sending.send(message, store.now_ms)
        store.flush()
        store.go(40)
        statistics = store.broker.timers.statistics
        assert len(store.delivered()) == COUNT
        counted.append((statistics.lateness, statistics.lateness_by_cause))
    assert counted[0] == counted[1]
    assert sum(counted[0][1].values()) == 0


@pytest.mark.parametrize("run_min", [1, 1_000], ids=["together", "one by one"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_a_half_that_is_committed_after_its_time_is_late_from_its_commit(
    is_restarted: bool, run_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TIMER_RUN_MIN", run_min)
    store = Store()
    halves = []
    for number in range(COUNT):
        half = store.message(f"m{number:02d}", SECOND)
        half.transactional = True
        halves.append(store.broker.sending.send(half, store.now_ms))
    store.flush()
    store.go(HOUR)  # nobody answers a check-back
    for half in halves:
        end = (half.transaction_id, half.message_id, Resolution.COMMIT, store.now_ms)
        store.broker.transactions.end("t", *end)
    store.flush()
    store.now_ms += 7
    if is_restarted:
        store.crash()
    store.go(0)
    statistics = store.broker.timers.statistics
    assert len(store.delivered()) == COUNT
    assert (statistics.lateness["t"].max_ms, statistics.lateness["t"].sum_ms) == (7, 7 * COUNT)
    assert sum(statistics.lateness_by_cause.values()) == 0


def test_a_run_counts_how_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_RUN_MIN", 1)
    store, _ = crowd()
    store.go(2 * SECOND)
    assert sum(store.broker.timers.statistics.lateness_by_cause.values()) == COUNT - 1
