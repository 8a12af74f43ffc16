"""What a node tells of its copy is of the copy that it has."""

from __future__ import annotations

import pytest

from commitlog.errors import StoreDamaged
from commitlog.log.recovery import Damage
from commitlog.snapshots import snapshot
from services.cluster import holes
from services.cluster.copies.checkpoints import OwnCopy
from services.cluster.copies.copying import StoreCopier
from services.cluster.replica import Replica
from sharedlog.engines import Beginning
from tests.memory_disk import MemoryDisk
from tests.unit.services.cluster.test_node import CLUSTER, SETTINGS, engine_with_messages, read_on


def test_a_look_at_a_copy_that_is_given_up_meanwhile_says_nothing_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (engine, _), disk = engine_with_messages(), MemoryDisk()
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_on(replica, engine)
    replica.checkpoint(0)
    own, read_from = OwnCopy("a", "", Beginning(CLUSTER, {}), disk, str), list[int]()
    damage_outside_holes = holes.damage_outside_holes

    def given_up(*values: object) -> list[Damage]:
        own.copy_withdrawal(3)
        return []

    monkeypatch.setattr(holes, "damage_outside_holes", given_up)
    assert own.checkpoint_announcement(replica, 0) is None

    def counted(of: MemoryDisk, segment_bytes: int, since: int, end: int) -> list[Damage]:
        read_from.append(since)
        return damage_outside_holes(of, segment_bytes, since, end)

    monkeypatch.setattr(holes, "damage_outside_holes", counted)
    assert own.checkpoint_announcement(replica, 1) is not None
    assert read_from == [0]


def test_a_word_of_a_copy_that_is_given_up_meanwhile_does_not_follow_the_one_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (engine, _), disk = engine_with_messages(), MemoryDisk()
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_on(replica, engine)
    replica.checkpoint(0)
    began = Beginning(CLUSTER, {})
    own = OwnCopy("a", "", began, disk, str)
    copying, checkpoint_announcement = StoreCopier("a", own, began, engine, disk), own.checkpoint_announcement

    def overtaken(replica: Replica, now_ms: int) -> bytes | None:
        stored = checkpoint_announcement(replica, now_ms)
        own.copy_withdrawal(3)
        return stored

    before = len(engine.records)
    with monkeypatch.context() as patch:
        patch.setattr(own, "checkpoint_announcement", overtaken)
        copying.announce_checkpoint(replica, 0)
    assert len(engine.records) == before
    copying.announce_checkpoint(replica, 1)
    assert len(engine.records) == before + 1


def test_what_was_checked_of_another_history_may_end_amid_a_record_of_this_one() -> None:
    (engine, _), disk = engine_with_messages(), MemoryDisk()
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_on(replica, engine)
    replica.checkpoint(0)
    own = OwnCopy("a", "", Beginning(CLUSTER, {}), disk, str)
    own.record_verified_end(5)
    assert own.checkpoint_announcement(replica, 0) is not None
    disk.flip_bit("commitlog/00000000000000000000", 8 * 100)
    own.copy_withdrawal(0)
    own.record_verified_end(5)
    with pytest.raises(StoreDamaged, match="Bytes 0 to"):
        own.checkpoint_announcement(replica, 1)


@pytest.mark.parametrize("when", ["before the look", "amid the look"])
def test_a_checkpoint_that_a_newer_one_replaces_meanwhile_is_not_told(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine, _), disk = engine_with_messages(), MemoryDisk()
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_on(replica, engine)
    replica.checkpoint(0)
    own, (end,) = OwnCopy("a", "", Beginning(CLUSTER, {}), disk, str), snapshot.offsets(disk)

    def replaced(of: MemoryDisk, offset: int) -> bool:
        of.delete(snapshot.path_of(offset))
        return False

    if when == "before the look":
        replaced(disk, end)
    else:
        monkeypatch.setattr(snapshot, "is_sound", replaced)
    assert own.checkpoint_announcement(replica, 0) is None
