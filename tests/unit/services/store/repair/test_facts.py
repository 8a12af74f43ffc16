"""Names and ends of timers that are damaged: mended without loss, or given up without a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.snapshots import snapshot
from consumequeue.runs.sorted_runs import BLOCK_BYTES
from services.broker.spine.values import PendingTimer, TimerName, TimerVerdict, Verdict
from services.broker.timers.timer_files import TIMER_FILES
from services.store.read_only.opening import open_store
from services.store.read_only.state import fold
from services.store.repair import repair
from services.store.verify.verify import verify

FOLDERS = (layout.TIMER_NAMES, layout.TIMER_ENDS)
NOT_WAITING = {Verdict.TOO_LATE, Verdict.ALREADY, Verdict.NEVER_SET, Verdict.FORGOTTEN}


@pytest.fixture
def root(timers_at: Callable[[str], Path], retired: Callable[[Path], None]) -> Path:
    """A store of timers whose first segment retention has deleted."""
    made = timers_at("store")
    retired(made)
    return made


def planned(root: Path, now_ms: int, yes: bool, gives_up: bool = False) -> repair.Plan:
    with repair.locked(root) as store:
        plan = repair.plan(store, now_ms, gives_up=gives_up)
        if yes:
            repair.carry_out(plan, root, store, now_ms)
    return plan


def newest_run(root: Path, folder: str) -> Path:
    return max((root / folder).iterdir(), key=lambda path: path.stat().st_size)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 4]))


def damage(root: Path) -> list[Any]:
    return [one for one in verify(open_store(root), now_of(root)).findings if one.is_damage]


def now_of(root: Path) -> int:
    newest = snapshot.newest(open_store(root).overlay())
    assert newest is not None
    return int(newest.parts["store"]["last_store_ms"]) + 2_000


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("position", [3, -3, -20], ids=["head", "CRCs", "filter"])
def test_a_run_whose_facts_can_be_read_is_written_again(root: Path, folder: str, position: int) -> None:
    path = newest_run(root, folder)
    before = path.read_bytes()
    flip(path, position % len(before))
    assert not verify(open_store(root), now_of(root)).is_sound
    plan = planned(root, now_of(root), yes=True)
    assert ([run.name for run in plan.mends], plan.lost, plan.hopeless) == ([path.name], [], [])
    assert damage(root) == []
    assert path.read_bytes()[: BLOCK_BYTES * 2] == before[: BLOCK_BYTES * 2]


def everything_known(root: Path, shop_type: Any) -> Iterator[tuple[TimerName, PendingTimer | TimerVerdict]]:
    """What the store says about each timer that was ever set, by its id and by its key."""
    shop = shop_type(RealDisk(root))
    for number in range(3):
        kinds = ("moved", "again", "cancelled", "fired", "carried", "kept", "late carrier", "set again")
        for kind in (*kinds, *map(str, shop_type.DELAYS_MS)):
            for name in (
                TimerName("orders", f"{number}-{kind}"),
                TimerName("orders", key=f"key {number}-{kind}"),
            ):
                yield name, shop.broker.timers.get_timer(name, now_of(root))
    shop.disk.close()


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("spoil", ["block", "gone"])
def test_what_cannot_be_read_is_given_up_only_if_asked_and_nothing_wrong_is_said_then(
    root: Path, folder: str, spoil: str, timer_shop: Any
) -> None:
    known = dict(everything_known(root, type(timer_shop)))
    waiting = list(fold(open_store(root), now_of(root)).pending_timers())
    for path in list((root / folder).iterdir()):
        path.unlink() if spoil == "gone" else flip(path, BLOCK_BYTES + 40)
    refused = planned(root, now_of(root), yes=True)
    assert {one.part for one in refused.hopeless} >= {folder.removeprefix("timers-")}
    assert not verify(open_store(root), now_of(root)).is_sound, "nothing is given up unasked"
    plan = planned(root, now_of(root), yes=True, gives_up=True)
    assert plan.hopeless == []
    assert len(plan.lost) == len(plan.gives_up) > 0
    assert damage(root) == []
    after = dict(everything_known(root, type(timer_shop)))
    assert list(fold(open_store(root), now_of(root)).pending_timers()) == waiting
    for name, was in known.items():
        if isinstance(was, PendingTimer):
            assert after[name] == was, "who waits is found by the same names"
        else:
            assert getattr(after[name], "verdict", None) in NOT_WAITING, f"{name} is taken for one that waits"
    newest = snapshot.newest(open_store(root).overlay())
    assert newest is not None
    assert newest.parts[TIMER_FILES]["ends"][folder.removeprefix("timers-")]
