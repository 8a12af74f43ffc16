"""Omit the rules of the shared log one at a time, for schedules of `sharedlog_play`.

Most of these mutants are those of `tests.simulation.test_sharedlog`. Here, the checker must detect them in
the history of the clients.
"""

from __future__ import annotations

import pytest

from sharedlog import record
from sharedlog.fold import EpochRelation, Fold, Outcome, Step
from sharedlog.record import SharedRecord
from tests.simulation.shared_world import Node, Rules, World
from tests.simulation.test_sharedlog import fold_takes


def chain_is_skipped(patch: pytest.MonkeyPatch) -> Rules:
    """Accept BYTES and EPOCH records without verifying the chain, and trust the local disks."""

    def any_bytes(fold: Fold, offset: int, one: SharedRecord) -> Step:
        if fold.compare_epoch(one) is not EpochRelation.OURS or one.start != fold.gathered.end:
            return Step(Outcome.DEAD, one)
        return fold._gather_bytes(offset, one)

    def any_epoch(fold: Fold, _: int, one: SharedRecord) -> Step:
        if fold.compare_epoch(one) is not EpochRelation.NEXT:
            return Step(Outcome.DEAD, one)
        fold.epoch, fold.holder = one.epoch, one.holder
        fold._drop_gathered_records()
        return Step(Outcome.NEW_EPOCH, one)

    patch.setitem(fold_takes(), record.Kind.BYTES, any_bytes)
    patch.setitem(fold_takes(), record.Kind.EPOCH, any_epoch)
    return Rules(is_local_disk_believed=True)


def restored_backup_is_believed(patch: pytest.MonkeyPatch) -> Rules:
    """Accept an engine that was restored from a backup. The nodes discard their state and continue."""
    act = World._act

    def believe(world: World, node: Node, chance: float) -> None:
        was_short = world.engine.is_short
        act(world, node, chance)
        if world.engine.is_short and not was_short:
            for one in world.nodes:
                one.kill()
                one.checkpoints, one.written, one.is_halted = [], [], False

    patch.setattr(World, "_act", believe)
    return Rules(trims_below_count=1_000)  # Disable trimming, so that nodes can start from the first record.
