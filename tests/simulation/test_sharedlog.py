"""Run random schedules of nodes that use a shared log (`shared_world`).

`pytest tests/simulation/test_sharedlog.py --seed S` repeats the schedules of a seed. Each mutant omits one
rule, and the schedules must detect that the rule is missing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedlog import faults, record
from sharedlog.errors import Halted
from sharedlog.fold import EpochRelation, Fold, Outcome, Step
from sharedlog.leader_records import LeaderRecords
from sharedlog.leading import Leader, Proof
from sharedlog.record import SharedRecord
from tests.simulation import shared_world
from tests.simulation.shared_world import OPERATION, Rules, World

FOUND_WITHIN = 2_000


@pytest.fixture(autouse=True)
def _small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the body size, so that a flush has one or two records, and skip CommitLog verification."""
    monkeypatch.setattr(record, "BODY_BYTES_MAX", 2 * OPERATION.size)
    monkeypatch.setattr(faults, "verify_records", lambda *_: [])


def test_what_is_acknowledged_is_in_the_history_once_and_on_every_node(seed: int) -> None:
    for each in range(10 * seed, 10 * seed + 10):
        World(each).run()


def test_what_an_engine_spoils_is_named_and_no_node_differs_in_silence(seed: int) -> None:
    for each in range(10 * seed, 10 * seed + 10):
        World(each, Rules(spoils=True)).run()


def gap_is_believed(patch: pytest.MonkeyPatch) -> Rules:
    """Treat a successful append at any offset as proven."""
    patch.setattr(Leader, "record_answer", lambda *_: Proof.ACCEPTED)
    return Rules()


def gap_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """Ignore BYTES that follow missing bytes, and treat every successful append as proven."""
    kept = Fold._apply_bytes

    def lenient(fold: Fold, offset: int, one: SharedRecord) -> Step:
        is_beyond = fold.compare_epoch(one) is EpochRelation.OURS and one.start > fold.gathered.end
        return Step(Outcome.DEAD, one) if is_beyond else kept(fold, offset, one)

    patch.setitem(fold_takes(), record.Kind.BYTES, lenient)
    return gap_is_believed(patch)


def candidate_is_not_asked_for_its_history(patch: pytest.MonkeyPatch) -> Rules:
    """Accept an EPOCH record regardless of its end and chain."""

    def lenient(fold: Fold, offset: int, one: SharedRecord) -> Step:
        if fold.compare_epoch(one) is not EpochRelation.NEXT:
            return Step(Outcome.DEAD, one)
        fold.epoch, fold.holder = one.epoch, one.holder
        fold._drop_gathered_records()
        return Step(Outcome.NEW_EPOCH, one)

    patch.setitem(fold_takes(), record.Kind.EPOCH, lenient)
    return Rules(is_local_disk_believed=True)


def local_disk_is_believed(_: pytest.MonkeyPatch) -> Rules:
    """Treat the operations on the local disk after the checkpoint as accepted."""
    return Rules(is_local_disk_believed=True)


def one_copy_is_enough_to_trim(_: pytest.MonkeyPatch) -> Rules:
    """Trim records that only one node has in its checkpoints."""
    return Rules(trims_below_count=1)


def holder_is_the_name_of_the_node(_: pytest.MonkeyPatch) -> Rules:
    """Use the node name as the holder, so that nodes with the same name are not distinguished."""
    return Rules(is_holder_drawn=False)


def missing_epoch_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """Ignore BYTES whose EPOCH record is missing instead of halting."""
    patch.setattr(Fold, "_may_write", lambda fold, _, one: fold.compare_epoch(one) is EpochRelation.OURS)
    return Rules()


def second_record_is_stepped_over_unseen(patch: pytest.MonkeyPatch) -> Rules:
    """Skip the second of two records at the same offset without comparing them."""
    patch.setattr(Fold, "_skip_duplicate", lambda *_: Step(Outcome.ALREADY_HAD))
    return Rules(spoils=True)


def lost_record_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """Ignore gaps in the offsets of records."""
    patch.setattr(shared_world, "records_before_gap", lambda *given: given[2])
    return Rules(spoils=True)


def named_record_alone_is_looked_at(patch: pytest.MonkeyPatch) -> Rules:
    """Check only the reported record, but not the leader record that precedes it."""
    kept = LeaderRecords.records_up_to
    patch.setattr(
        LeaderRecords, "records_up_to", lambda led, at: [one for one in kept(led, at) if one.offset == at]
    )
    return Rules(spoils=True)


MUTANTS: list[Callable[[pytest.MonkeyPatch], Rules]] = [
    gap_is_believed,
    gap_is_read_over,
    candidate_is_not_asked_for_its_history,
    local_disk_is_believed,
    one_copy_is_enough_to_trim,
    holder_is_the_name_of_the_node,
    missing_epoch_is_read_over,
    second_record_is_stepped_over_unseen,
    lost_record_is_read_over,
    named_record_alone_is_looked_at,
]


FOUND_BY = {missing_epoch_is_read_over: 785, one_copy_is_enough_to_trim: 255}
"""The schedules that are tried first, because few other schedules detect these mutants."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_a_rule_that_is_left_out_is_found(
    mutant: Callable[[pytest.MonkeyPatch], Rules], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = mutant(monkeypatch)
    for each in dict.fromkeys((FOUND_BY.get(mutant, 0), *range(FOUND_WITHIN))):
        try:
            World(each, rules).run()
        except (AssertionError, Halted):
            return
    pytest.fail(f"{FOUND_WITHIN} schedules have not found it")


def fold_takes() -> dict[object, object]:
    """Return the table of the methods with which a fold applies each kind of record."""
    from sharedlog import fold

    return vars(fold)["_APPLIERS"]  # type: ignore[no-any-return]
