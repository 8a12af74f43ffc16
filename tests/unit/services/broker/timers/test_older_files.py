"""Older files of timers: none is deleted that alone has the records of timers which damaged bytes held."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.checkpoint import Checkpoint
from services.broker.spine.values import RunTimersJob
from services.broker.timers.timer_repair import CheckJob, RepairJob
from tests.unit.services.broker.timers.test_timer_repair import (
    drained,
    files,
    reopen,
    split_and_spoilt,
    spoil_batch,
)
from tests.unit.services.broker.timers.test_timers import Store


def reach_rescue(store: Store, *, finds_all: bool) -> bool:
    """Lets workers read until a rescue has, or has failed; nothing is rebuilt. Returns False if none came."""
    for _ in range(100):
        for effect in store.broker.tick(store.now_ms):
            if not isinstance(effect, RunTimersJob):
                continue
            if isinstance(effect.job, RepairJob) and not finds_all:
                store.broker.requeue_timers_job(effect.job)
                return True
            effect.job.run(store.disk)
            store.broker.complete_timers_job(effect.job)
            if isinstance(effect.job, RepairJob):
                return True
        store.flush()
    return False


def let_a_rescue_fail(store: Store) -> bool:
    """As where the process is out of descriptors for a moment, or the disk fails once."""
    return reach_rescue(store, finds_all=False)


def let_a_rescue_find_all(store: Store) -> bool:
    return reach_rescue(store, finds_all=True)


def let_checks_run(store: Store) -> None:
    """Lets workers check files, and nothing be rebuilt: a rescue fails each time."""
    for _ in range(20):
        for effect in store.broker.tick(store.now_ms):
            if isinstance(effect, RunTimersJob):
                if isinstance(effect.job, CheckJob):
                    effect.job.run(store.disk)
                    store.broker.complete_timers_job(effect.job)
                else:
                    store.broker.requeue_timers_job(effect.job)
        store.flush()


def checkpoint_once(store: Store) -> None:
    store.send(f"another at {store.broker.end_offset}", None)
    store.checkpoint()


def checkpoint_twice(store: Store) -> None:
    """So that no snapshot names what was split before."""
    checkpoint_once(store)
    checkpoint_once(store)


def kill(store: Store) -> None:
    store.disk.kill(lambda _: 0)
    reopen(store)


def assert_none_is_lost(store: Store) -> None:
    assert "month" in drained(store)
    assert store.broker.timer_views.lost() == []


@pytest.mark.parametrize("checkpoints", [0, 2])
def test_an_older_file_stays_while_a_rescue_that_failed_is_to_be_tried_again(checkpoints: int) -> None:
    store, parent = split_and_spoilt()
    assert let_a_rescue_fail(store)
    for _ in range(checkpoints):
        checkpoint_twice(store)
        assert parent in files(store)
    assert_none_is_lost(store)
    checkpoint_twice(store)
    assert parent not in files(store), "nothing needs it any more"


@pytest.mark.parametrize("let_come_to_an_end", [let_a_rescue_fail, let_a_rescue_find_all])
def test_a_restart_amid_a_rescue_costs_no_timer_that_an_older_file_has(
    let_come_to_an_end: Callable[[Store], bool],
) -> None:
    """`timer_repair`: "a crash in between costs nothing"; no snapshot names the older file by then."""
    store, parent = split_and_spoilt()
    assert let_come_to_an_end(store)
    checkpoint_twice(store)
    kill(store)
    assert parent in files(store)
    checkpoint_twice(store)
    assert_none_is_lost(store)


def test_an_older_file_stays_after_a_start_until_all_was_read() -> None:
    """The start does not know what the process before it had met."""
    store, parent = split_and_spoilt()
    let_checks_run(store)
    checkpoint_twice(store)
    kill(store)
    checkpoint_twice(store)
    kill(store)
    checkpoint_twice(store)
    assert parent in files(store), "nothing was read since the start"
    assert_none_is_lost(store)
    checkpoint_twice(store)
    assert parent not in files(store)


def test_damage_that_is_met_while_a_checkpoint_is_written_spares_the_older_file() -> None:
    store, parent = split_and_spoilt()
    store.send("another", None)
    store.checkpoint()
    store.broker.timers.partitions.release_older()
    checkpoint = begun(store)
    let_checks_run(store)
    checkpoint.write(store.disk)
    store.broker.complete_checkpoint(checkpoint)
    assert parent in files(store)
    assert_none_is_lost(store)


def begun(store: Store) -> Checkpoint:
    store.send(f"yet another {store.broker.end_offset}", None)
    return store.broker.checkpoint(store.now_ms)


def test_files_of_times_in_which_nothing_is_damaged_are_deleted_meanwhile() -> None:
    """A rescue that finds nothing out for days must not fill the disk."""
    store, parent = split_and_spoilt()
    let_checks_run(store)
    assert store.broker.timers.partitions.damage or store.broker.timer_repair._rows_without_record
    other = "timers/0-00000000000016000000"
    store.disk.write(other, 0, b"of 1970")
    checkpoint_twice(store)
    assert other not in files(store)
    assert parent in files(store)


@cache
def _spoilt() -> tuple[Store, str]:
    return split_and_spoilt()


WHATEVER: dict[str, Callable[[Store], object]] = {
    "rescue fails": let_a_rescue_fail,
    "rescue finds all": let_a_rescue_find_all,
    "checks": let_checks_run,
    "checkpoint": checkpoint_once,
    "kill": kill,
    "crash": Store.crash,
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([*WHATEVER]), max_size=9), st.booleans())
def test_whatever_ends_costs_no_timer_that_an_older_file_has(events: list[str], is_batch: bool) -> None:
    """A rescue that fails, a restart in the middle of one, a crash, in any order, and checkpoints between."""
    spoilt, store = _spoilt()[0], Store()
    store.disk, store.now_ms = deepcopy(spoilt.disk), spoilt.now_ms
    if is_batch:
        child = max(spoilt.broker.timers.partitions.files, key=lambda slot: slot.start_ms)
        spoil_batch(store, child.path, 0)
    reopen(store)
    for event in events:
        WHATEVER[event](store)
    assert_none_is_lost(store)
