"""Tests that a reader reports an error if the engine loses, duplicates, changes, or reorders records."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sharedlog.engine import Head, Stored
from sharedlog.errors import Halted, LogDamaged, LogTrimmed
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.leading import Candidate, Leader
from sharedlog.reading import read_steps, read_until, records
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, SharedRecord, encode
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
GENESIS, EPOCH, FIRST, BEAT, SECOND, LAST, END = range(7)
"""The offsets of the records that `written` writes."""


def written(*, is_dense: bool = True) -> MemoryEngine:
    """Return an engine that contains these records: GENESIS, EPOCH, BYTES, BEAT, BYTES, BEAT."""
    engine = MemoryEngine(Random(1), EMPTY_HEAD if is_dense else None)
    engine.is_well = True
    fold = Fold(CLUSTER)

    def land(record: SharedRecord) -> None:
        engine.create_log(encode(record))
        fold.apply_record(engine.end_offset - 1, engine.records[-1])

    land(genesis_of(CLUSTER))
    land(Candidate(fold, b"who leads epoch1", {"node": "a"}).epoch)
    leader = Leader(fold)
    for body in (b"one", b"two"):
        land(leader.make_flush([body])[0])
        land(leader.make_beat({}))
    return engine


def read(engine: MemoryEngine) -> tuple[Fold, list[Outcome]]:
    fold = Fold(CLUSTER)
    return fold, [step.outcome for _, step in read_steps(engine, fold)]


def lost(engine: MemoryEngine, offset: int) -> None:
    engine.spoil(offset)


def doubled_unequally(engine: MemoryEngine, offset: int) -> None:
    engine.spoil(offset, engine.records[offset], engine.records[offset - 1])


def changed(engine: MemoryEngine, offset: int) -> None:
    engine.spoil(offset, engine.records[offset][:-1] + b"X")


@pytest.mark.parametrize("offset", range(END))
def test_an_equal_second_record_is_stepped_over(offset: int) -> None:
    engine = written()
    sound, _ = read(engine)
    engine.spoil(offset, *[engine.records[offset]] * 2)
    fold, outcomes = read(engine)
    assert (fold.freeze(), fold.repeated_count) == (sound.freeze(), 1)
    assert outcomes.count(Outcome.ALREADY_HAD) == 1


@pytest.mark.parametrize("offset", [EPOCH, FIRST, BEAT, SECOND])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lost, "Record {0} is missing: the log has records 0 to 5, and a gap before {1}"),
        (doubled_unequally, "Record {0} of the shared log: the engine has two that differ, CRC-32"),
        (changed, "Record {0} of the shared log: 4 times it did not match its CRC"),
    ],
)
def test_what_an_engine_lost_doubled_or_changed_halts_with_its_number(
    fault: Callable[[MemoryEngine, int], None], said: str, offset: int
) -> None:
    engine = written()
    fault(engine, offset)
    with pytest.raises(Halted) as raised:
        read(engine)
    assert said.format(offset, offset + 1) in str(raised.value)


def test_several_lost_records_are_named_by_the_first_and_the_last() -> None:
    engine = written()
    engine.spoil(FIRST)
    engine.spoil(BEAT)
    with pytest.raises(LogDamaged, match=r"Records 2 to 3 are missing: .* and a gap before 4"):
        read(engine)


def test_records_out_of_order_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = written()
    rows = [Stored(at, one, 0) for at, one in enumerate(engine.records)]
    rows[FIRST], rows[BEAT] = rows[BEAT], rows[FIRST]
    monkeypatch.setattr(engine, "read", lambda offset, _: rows[offset:])
    with pytest.raises(LogDamaged, match="Record 2 came after record 3: the answer is out of order"):
        read(engine)


def test_an_answer_from_before_what_was_asked_for_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fold = written(), Fold(CLUSTER)
    read_until(engine, fold, SECOND)
    monkeypatch.setattr(engine, "read", lambda *_: [Stored(EPOCH, engine.records[EPOCH], 0)])
    with pytest.raises(LogDamaged, match="after record 3: its answer is out of order"):
        read_until(engine, fold, END)


def test_an_end_that_shrank_is_named() -> None:
    engine = written()
    with pytest.raises(Halted, match="Record 8 of the shared log was accepted and is gone"):
        read_until(engine, Fold(CLUSTER), 9)


def test_a_gap_before_the_logs_first_record_is_a_trim() -> None:
    engine, fold = written(), Fold(CLUSTER)
    read_until(engine, fold, FIRST)
    engine.trim(SECOND)
    with pytest.raises(LogTrimmed, match="begins at record 4, and this node has read up to 2"):
        read_until(engine, fold, END)


def test_an_engine_that_is_not_dense_may_leave_gaps_but_not_of_bytes() -> None:
    engine = written(is_dense=False)
    engine.spoil(BEAT)
    fold, _ = read(engine)
    assert fold.end == len(b"onetwo")
    engine.spoil(FIRST)
    with pytest.raises(Halted, match="bytes 0 to 3 of the history are missing"):
        read(engine)


class BadPage(MemoryEngine):
    """An engine that cannot read two records, and cannot read the preceding records in a single batch."""

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if offset in (FIRST, BEAT):
            raise LogDamaged(f"Record {offset}: invalid page in block 17.", offset)
        return [one for one in super().read(offset, bytes_max) if one.offset < FIRST or offset > BEAT]


def test_a_reader_without_a_fold_steps_over_what_the_engine_cannot_read() -> None:
    engine = written()
    kinds = [one.kind for one in records(engine, CLUSTER)]
    engine.__class__ = BadPage
    assert [one.kind for one in records(engine, CLUSTER)] == kinds[:FIRST] + kinds[SECOND:]
