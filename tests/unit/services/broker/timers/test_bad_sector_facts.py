"""What the disk cannot read of names and ends of timers is damage as a flipped bit is, told as the disk's."""

from __future__ import annotations

import pytest

from commitlog import layout
from services.broker.broker import Broker
from services.broker.spine.values import TimerVerdict, Verdict
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.unit.services.broker.timers.bad_sector import BadSector, drained, filled, go
from tests.unit.services.broker.timers.test_timer_repair import IDS, files, spoil_batch
from tests.unit.services.broker.timers.test_timers import Store, by_id

FOLDERS = [layout.TIMER_NAMES, layout.TIMER_ENDS]
HEAD, BLOCK, TAIL = (0, 1), (4096, 4097), (8192, 8193)


def reopen(store: Store) -> None:
    store.disk.kill(lambda _: 0)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)


def with_bad_sector(folder: str, place: tuple[int, int]) -> tuple[Store, BadSector]:
    store, disk = filled()
    [name, *_] = disk.list(folder)
    disk.path, (disk.first, disk.end) = f"{folder}/{name}", place
    return store, disk


def told_of(store: Store, path: str) -> list[str]:
    return [one.what for one in store.broker.damage if path in one.what]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("place", [HEAD, BLOCK, TAIL])
def test_a_start_makes_names_and_ends_again_that_the_disk_cannot_read(
    folder: str, place: tuple[int, int]
) -> None:
    store, disk = with_bad_sector(folder, place)
    assert not verify(look_at(disk, "it"), store.now_ms).is_sound
    reopen(store)
    (what,) = told_of(store, disk.path)
    assert what.startswith(f"The disk cannot read {disk.path} (fails by the test): look at the kernel's log")
    for message_id in IDS:
        found = store.broker.timers.get_timer(by_id(f"{message_id} cancelled"), store.now_ms)
        assert isinstance(found, TimerVerdict)
        assert found.verdict is Verdict.ALREADY
    store.checkpoint()
    reopen(store)
    assert not store.broker.damage, "the runs were written anew"
    assert drained(store) == sorted(IDS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_check_meets_it_goes_on_and_tells_of_the_disk(folder: str) -> None:
    store, disk = with_bad_sector(folder, BLOCK)
    store.broker.timer_repair.begin(store.now_ms)
    assert go(store) == 0
    assert [what.split(" (")[0] for what in told_of(store, disk.path)] == [
        f"The disk cannot read {disk.path}"
    ]
    store.checkpoint()
    assert drained(store) == sorted(IDS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_rescue_goes_on_at_the_next_start_at_the_latest(folder: str) -> None:
    store, _ = with_bad_sector(folder, BLOCK)
    for path in files(store):
        spoil_batch(store, path, 0)
    store.broker.timer_repair.begin(store.now_ms)
    assert go(store) == 0, "no job fails: what a rescue cannot find out it says"
    reopen(store)
    assert drained(store) == sorted(IDS)
    assert store.broker.timer_views.lost() == []
