"""`verify` on timers: a store with every verb is sound, and what contradicts is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreDamaged
from commitlog.snapshots import snapshot
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.store.copying.copying import copy_store
from services.store.read_only.opening import look_at, open_store
from services.store.read_only.state import fold
from services.store.repair import repair
from services.store.verify.verify import verify
from timingwheel.partition import HEAD


def test_a_store_with_every_verb_on_timers_is_sound(timer_shop: Any) -> None:
    store = look_at(timer_shop.disk, "store")
    assert verify(store, timer_shop.now_ms).findings == []
    state = fold(store, timer_shop.now_ms)
    ends = Counter(one.end for one in state.ended_timers())
    assert ends == {"DELIVERED": 3, "CANCELLED": 9, "MOVED": 6, "REPLACED": 3, "FIRED": 3}
    waiting = list(state.pending_timers())
    assert len(waiting) == timer_shop.broker.gauges().pending_timers == state.timers.counted_count
    due_ms = [one.due_ms or 0 for one in waiting]
    assert due_ms == sorted(due_ms)
    assert state.timers.next_due_ms() == waiting[0].due_ms
    assert {one.topic for one in (*waiting, *state.ended_timers())} == {"orders"}


def test_a_dead_letter_does_not_end_again_what_its_message_ended(timer_shop: Any) -> None:
    broker, now_ms = timer_shop.broker, timer_shop.now_ms
    carriers = 0
    while given := broker.receiving.receive(
        "g", "orders", EVERYTHING, 32, 60_000, "c", False, now_ms
    ).deliveries:
        for one in given:
            carriers += "TW_TIMER_CANCEL" in one.message.properties
            broker.receiving.forward_to_dead_letter("g", "orders", one.receipt_handle, now_ms)
    timer_shop.flush()
    assert carriers == 3
    assert verify(look_at(timer_shop.disk, "store"), now_ms).findings == []
    again = Broker.open(timer_shop.disk, timer_shop.settings, now_ms)
    assert again.gauges().pending_timers == broker.gauges().pending_timers


def contradict_count(parts: Any) -> None:
    parts["timers"]["pending"]["orders"] += 1


def contradict_rows(parts: Any) -> None:
    max(parts["timer_files"]["partitions"]["files"].values(), key=lambda file: file[1])[1] += 1


def contradict_queues(parts: Any) -> None:
    parts["timer_files"]["queues"][0][1] += 1


def forget_ends(parts: Any) -> None:
    runs = parts["timer_files"]["ends"]["ends"]
    assert len(runs) > 1
    del runs[0]


def test_ends_that_a_snapshot_forgot_are_made_of_the_log(timers_at: Any) -> None:
    root = timers_at("store")
    disk = RealDisk(root)
    newest = snapshot.newest(disk)
    assert newest is not None
    before = list(fold(open_store(root), newest.parts["store"]["last_store_ms"]).ended_timers())
    forget_ends(newest.parts)
    newest.write(disk)
    with repair.locked(root) as store:
        plan = repair.plan(store, 0, gives_up=True)
        assert plan.makes_facts
        repair.carry_out(plan, root, store, 0)
    assert verify(open_store(root), 0).is_sound
    after = list(fold(open_store(root), 0).ended_timers())
    assert [(one.timer_offset, one.end) for one in after] == [(one.timer_offset, one.end) for one in before]


def forget_partition(parts: Any) -> None:
    parts["timer_files"]["partitions"]["files"].popitem()


def name_twice(parts: Any) -> None:
    files = parts["timer_files"]["partitions"]["files"]
    name = max(files, key=lambda name: files[name][1])
    parts["timer_files"]["partitions"]["files"] |= {name: [files[name][0] * 2, *files[name][1:]]}


CONTRADICTIONS: dict[Any, str] = {
    contradict_count: "timers wait, the broker counts",
    contradict_rows: "timers and ends, a snapshot counts",
    contradict_queues: "is for another queue than its row says",
    forget_ends: "has a name and does not wait, but its end is not known",
    forget_partition: "neither waits nor has ended",
    name_twice: "and a snapshot counts on",
}


@pytest.mark.parametrize("contradict", CONTRADICTIONS, ids=lambda one: one.__name__)
def test_a_snapshot_that_contradicts_is_told(timer_shop: Any, contradict: Any) -> None:
    newest = snapshot.newest(timer_shop.disk)
    assert newest is not None
    contradict(newest.parts)
    newest.write(timer_shop.disk)
    findings = verify(look_at(timer_shop.disk, "store"), timer_shop.now_ms).findings
    assert any(CONTRADICTIONS[contradict] in one.what and one.is_damage for one in findings), findings


def largest(root: Path) -> Path:
    return max((root / layout.TIMERS).iterdir(), key=lambda path: path.stat().st_size)


def waiting_ids(root: Path) -> list[tuple[str, int | None]]:
    state = fold(open_store(root), newest_ms(root))
    return sorted((one.message_id, one.due_ms) for one in state.pending_timers())


def newest_ms(root: Path) -> int:
    newest = snapshot.newest(open_store(root).overlay())
    assert newest is not None
    return int(newest.parts["store"]["last_store_ms"])


def repaired(root: Path) -> repair.Plan:
    with repair.locked(root) as store:
        plan = repair.plan(store, newest_ms(root))
        repair.carry_out(plan, root, store, newest_ms(root))
    return plan


def damage(root: Path) -> list[str]:
    return [one.what for one in verify(open_store(root), newest_ms(root)).findings if one.is_damage]


def spoil(path: Path) -> None:
    """The rows of the first batch, and a record of the last."""
    content = bytearray(path.read_bytes())
    content[content.rfind(b"orders")] ^= 1
    content[HEAD.size + 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("fault", [spoil, Path.unlink, lambda path: path.write_bytes(b"")])
def test_repair_rebuilds_from_the_log_what_a_damaged_partition_held(timers_at: Any, fault: Any) -> None:
    root = timers_at("store")
    waiting = waiting_ids(root)
    fault(largest(root))
    assert damage(root)
    plan = repaired(root)
    assert (plan.mends_timers, plan.lost, plan.hopeless) == (True, [], [])
    assert damage(root) == []
    assert waiting_ids(root) == waiting
    assert repaired(root).is_empty


def test_segments_that_nobody_deleted_are_told_until_a_repair_has_said_so(timers_at: Any) -> None:
    root = timers_at("store")
    (root / layout.segment_path(0)).unlink()
    (told,) = [one for one in damage(root) if "segments are missing" in one]
    assert told in repaired(root).lost
    assert not [one for one in damage(root) if "segments are missing" in one]


def test_what_neither_log_nor_file_has_is_told_and_never_waits_again(timers_at: Any, retired: Any) -> None:
    root = timers_at("store")
    waiting = waiting_ids(root)
    path = largest(root)
    retired(root)
    spoil(path)
    plan = repaired(root)
    (told,) = plan.lost
    assert "nobody has any more" in told
    assert path.name in told
    left = waiting_ids(root)
    assert len(left) < len(waiting)
    assert set(left) < set(waiting)
    assert damage(root) == []


def test_a_partition_that_is_gone_is_told_and_not_copied_and_its_timers_are_those_of_the_log(
    timers_at: Any,
) -> None:
    root = timers_at("store")
    path = largest(root)
    path.unlink()
    findings = verify(open_store(root), 0).findings
    assert any(one.path == f"{layout.TIMERS}/{path.name}" and "is missing" in one.what for one in findings)
    with pytest.raises(StoreDamaged, match=path.name):
        copy_store(root, root.parent / "copy")
    assert not (root.parent / "copy").exists()
    assert list(fold(open_store(root), 0).pending_timers())
