"""`store snapshot`: the copy is whole, opens as a store, and nothing of the original changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_files import TIMER_FILES
from services.process.private_files import auth_key, key_of
from services.store.copying.copying import copy_store
from services.store.copying.timers import held_timers
from services.store.read_only.opening import open_store
from services.store.read_only.reading import StoreFiles
from services.store.read_only.state import fold
from services.store.verify.verify import verify

NOW_MS = 1_763_700_900_000


def test_the_copy_holds_what_the_store_held_at_its_durable_offset(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    target = root.parent / "copy"
    copied = copy_store(root, target)
    assert copied.durable_offset == open_store(root).durable_offset
    assert verify(open_store(target), NOW_MS).is_sound
    original, copy = (fold(open_store(one), NOW_MS) for one in (root, target))
    assert (copy.topics, copy.groups) == (original.topics, original.groups)
    assert (copy.halves, copy.next_offsets) == (original.halves, original.next_offsets)
    assert list(copy.pending_timers()) == list(original.pending_timers()) != []
    assert list(copy.ended_timers()) == list(original.ended_timers()) != []


def test_the_copy_opens_as_a_store(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    target = root.parent / "copy"
    target.mkdir()
    copy_store(root, target)
    brokers = [Broker.open(RealDisk(one), BrokerSettings(), NOW_MS) for one in (root, target)]
    read = [
        [one.message for queue_id in range(2) for one in broker.finding.read("orders", queue_id, 0, 500)]
        for broker in brokers
    ]
    assert read[0] == read[1]
    assert len(read[0]) > 100


def test_what_cannot_be_read_of_the_store_is_not_said_of_the_copy(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    (root / layout.CLOCK).mkdir()
    with pytest.raises(StoreError, match=f"{root / layout.CLOCK} cannot be read"):
        copy_store(root, root.parent / "copy")


@pytest.mark.parametrize("name", ["store/inside", "full", "file"])
def test_a_target_that_cannot_be_is_refused(store_at: Callable[[str], Path], name: str) -> None:
    root = store_at("store")
    (root.parent / "full").mkdir()
    (root.parent / "full" / "mine").touch()
    (root.parent / "file").touch()
    with pytest.raises(StoreError, match=name):
        copy_store(root, root.parent / name)
    assert (root.parent / "full" / "mine").exists()
    assert not list(root.parent.rglob("*.unfinished"))


def test_the_copy_of_a_virtual_store_keeps_its_clock(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    layout.begin_clock(RealDisk(root))
    layout.keep_clock(RealDisk(root), 1_800_000, turn=0)
    copy_store(root, root.parent / "copy")
    assert layout.read_clock(RealDisk(root.parent / "copy")) == 1_800_000


def test_timers_whose_records_the_log_has_not_any_more_are_copied(
    timers_at: Callable[[str], Path], retired: Callable[[Path], None]
) -> None:
    root = timers_at("store")
    retired(root)
    target = root.parent / "copy"
    copy_store(root, target)
    original, copy = (fold(open_store(one), NOW_MS) for one in (root, target))
    assert list(copy.pending_timers()) == list(original.pending_timers()) != []
    assert list(copy.ended_timers()) == list(original.ended_timers()) != []
    assert verify(open_store(target), NOW_MS).is_sound


def test_a_copy_begins_anew_when_a_newer_snapshot_took_its_files_away(
    timers_at: Callable[[str], Path],
) -> None:
    root = timers_at("store")
    newest = snapshot.newest(RealDisk(root))
    assert newest is not None
    largest = max((root / layout.TIMERS).iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    newest.parts[TIMER_FILES]["partitions"]["files"].pop(largest.name)
    replace(newest, offset=newest.offset + 1).write(RealDisk(root))
    before = [one for one in snapshot.offsets(RealDisk(root)) if one < newest.offset + 1][-1]
    old = snapshot.read(RealDisk(root), before)
    assert old is not None
    old.parts[TIMER_FILES]["partitions"]["files"][largest.name] = [1, 1, 0]
    with ExitStack() as stack:
        assert held_timers(StoreFiles(root), old, stack) is None


def test_the_key_of_users_is_copied_when_it_is_asked_for_only(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    with pytest.raises(StoreError, match="--with-key"):
        copy_store(root, root.parent / "none", with_key=True)
    key = auth_key(key_of(root), may_make=True)
    for name, with_key in (("without", False), ("with", True)):
        copy_store(root, root.parent / name, with_key=with_key)
        assert (key_of(root.parent / name)).exists() is with_key
    copied = key_of(root.parent / "with")
    assert auth_key(copied, may_make=False) == key
    assert copied.stat().st_mode & 0o777 == 0o600
    assert (root.parent / "with").stat().st_mode & 0o007 == 0
