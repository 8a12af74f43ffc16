"""Random schedules of nodes over one shared log; `shared_world` says how.

`pytest tests/simulation/test_sharedlog.py --seed S` plays one again. A mutant leaves one rule out: the same
schedules must find that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharedlog import faults, record
from sharedlog.errors import Halted
from sharedlog.fold import EpochRelation, Fold, Outcome, Step
from sharedlog.leading import Leader, Proof
from sharedlog.led import LeaderRecords
from sharedlog.record import SharedRecord
from tests.simulation import shared_world
from tests.simulation.shared_world import OPERATION, Rules, World

FOUND_WITHIN = 2_000


@pytest.fixture(autouse=True)
def _small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush be one record or two; operations are no records of a CommitLog."""
    monkeypatch.setattr(record, "BODY_BYTES_MAX", 2 * OPERATION.size)
    monkeypatch.setattr(faults, "verify_records", lambda *_: [])


def test_what_is_acknowledged_is_in_the_history_once_and_on_every_node(seed: int) -> None:
    for each in range(10 * seed, 10 * seed + 10):
        World(each).run()


def test_what_an_engine_spoils_is_named_and_no_node_differs_in_silence(seed: int) -> None:
    for each in range(10 * seed, 10 * seed + 10):
        World(each, Rules(spoils=True)).run()


def gap_is_believed(patch: pytest.MonkeyPatch) -> Rules:
    """A success at any offset is taken for a proof."""
    patch.setattr(Leader, "record_answer", lambda *_: Proof.ACCEPTED)
    return Rules()


def gap_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """BYTES behind missing ones are dead, and no reason to halt; an answer is believed anyway."""
    kept = Fold._apply_bytes

    def lenient(fold: Fold, offset: int, one: SharedRecord) -> Step:
        is_beyond = fold.compare_epoch(one) is EpochRelation.OURS and one.start > fold.gathered.end
        return Step(Outcome.DEAD, one) if is_beyond else kept(fold, offset, one)

    patch.setitem(fold_takes(), record.Kind.BYTES, lenient)
    return gap_is_believed(patch)


def candidate_is_not_asked_for_its_history(patch: pytest.MonkeyPatch) -> Rules:
    """An EPOCH counts whatever end and chain it names."""

    def lenient(fold: Fold, offset: int, one: SharedRecord) -> Step:
        if fold.compare_epoch(one) is not EpochRelation.NEXT:
            return Step(Outcome.DEAD, one)
        fold.epoch, fold.holder = one.epoch, one.holder
        fold._drop_gathered()
        return Step(Outcome.NEW_EPOCH, one)

    patch.setitem(fold_takes(), record.Kind.EPOCH, lenient)
    return Rules(is_local_disk_believed=True)


def local_disk_is_believed(_: pytest.MonkeyPatch) -> Rules:
    """What lies on the local disk behind the checkpoint is taken for accepted."""
    return Rules(is_local_disk_believed=True)


def one_copy_is_enough_to_trim(_: pytest.MonkeyPatch) -> Rules:
    """The log is trimmed below what one machine holds."""
    return Rules(trims_below_count=1)


def holder_is_the_name_of_the_node(_: pytest.MonkeyPatch) -> Rules:
    """Two attempts of nodes with one name are taken for one."""
    return Rules(is_holder_drawn=False)


def missing_epoch_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """BYTES under a right of which no EPOCH tells are dead, and no reason to halt."""
    patch.setattr(Fold, "_may_write", lambda fold, _, one: fold.compare_epoch(one) is EpochRelation.OURS)
    return Rules()


def second_record_is_stepped_over_unseen(patch: pytest.MonkeyPatch) -> Rules:
    """Of two records at one offset the first counts, whatever the second is."""
    patch.setattr(Fold, "_skip_duplicate", lambda *_: Step(Outcome.ALREADY_HAD))
    return Rules(spoils=True)


def lost_record_is_read_over(patch: pytest.MonkeyPatch) -> Rules:
    """A gap in the records' offsets is none of a reader's business."""
    patch.setattr(shared_world, "records_before_gap", lambda *given: given[2])
    return Rules(spoils=True)


def named_record_alone_is_looked_at(patch: pytest.MonkeyPatch) -> Rules:
    """The leader reads the record that another node names, and not its own one before that."""
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
"""The schedules that have found what few do; they are tried first."""


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
    """Return the table of what a fold does with each kind of record."""
    from sharedlog import fold

    return vars(fold)["_TAKES"]  # type: ignore[no-any-return]
