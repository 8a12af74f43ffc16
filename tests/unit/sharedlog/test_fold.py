"""Tests that each record has the effect on a reader that is defined by the tables in `sharedlog.fold`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sharedlog import fold as folding
from sharedlog.errors import Halted, LogDamaged
from sharedlog.fold import Fold, Outcome, Position, Positions, Step
from sharedlog.record import Kind, SharedRecord, encode, extend_chain
from tests.genesis import genesis_of

CLUSTER, ME, OTHER = b"c" * 16, b"m" * 16, b"o" * 16
GENESIS = genesis_of(CLUSTER)


class Log:
    """A growing log whose records are applied to a fold immediately."""

    def __init__(self) -> None:
        self.fold, self.records = Fold(CLUSTER), list[bytes]()

    def apply_record(self, one: SharedRecord) -> Step:
        self.records.append(encode(one))
        return self.fold.apply_record(len(self.records) - 1, self.records[-1])

    def outcome(self, one: SharedRecord) -> Outcome:
        return self.apply_record(one).outcome

    def halts(self, one: SharedRecord, why: str) -> None:
        with pytest.raises(Halted, match=why):
            self.apply_record(one)
        with pytest.raises(Halted, match=why):  # A fold that has halted does not accept further records.
            self.apply_record(self.beat())

    def epoch(self, epoch: int = 1, holder: bytes = ME) -> SharedRecord:
        return SharedRecord(CLUSTER, Kind.EPOCH, epoch, holder, self.fold.end, self.fold.chain)

    def bytes(self, body: bytes, *, zeros: int = 0, is_last: bool = True) -> SharedRecord:
        at = self.fold.gathered
        chain = extend_chain(at.chain, at.end, body, zeros)
        return SharedRecord(
            CLUSTER, Kind.BYTES, self.fold.epoch, self.fold.holder, at.end, chain, body, zeros, is_last
        )

    def beat(self) -> SharedRecord:
        return SharedRecord(
            CLUSTER, Kind.BEAT, self.fold.epoch, self.fold.holder, self.fold.end, self.fold.chain
        )


@pytest.fixture
def log() -> Log:
    """Return a log with a GENESIS record, an EPOCH record of the leader `ME`, and eight accepted bytes."""
    log = Log()
    assert log.outcome(GENESIS) is Outcome.NOTED
    assert log.outcome(log.epoch()) is Outcome.NEW_EPOCH
    assert log.outcome(log.bytes(b"12345678")) is Outcome.ACCEPTED
    return log


def test_a_flush_is_accepted_as_a_whole(log: Log) -> None:
    first = log.bytes(b"first", is_last=False)
    assert log.outcome(first) is Outcome.GATHERED
    assert log.fold.end == 8
    assert log.fold.gathered == Position(13, first.chain)
    second = log.bytes(b"second", zeros=100)
    assert log.apply_record(second) == Step(Outcome.ACCEPTED, second, (first, second), (3, 4))
    assert (log.fold.end, log.fold.chain) == (119, second.chain)


def test_an_unfinished_flush_is_dropped_by_the_next_epoch(log: Log) -> None:
    log.apply_record(log.bytes(b"first", is_last=False))
    late = log.bytes(b"second")
    assert log.outcome(log.epoch(2, OTHER)) is Outcome.NEW_EPOCH
    assert log.fold.gathered == Position(8, log.fold.chain)
    assert log.outcome(late) is Outcome.DEAD
    assert log.outcome(log.bytes(b"of the new leader")) is Outcome.ACCEPTED


def test_an_epoch_is_dead_where_another_began_it(log: Log) -> None:
    assert log.outcome(log.epoch(1, OTHER)) is Outcome.DEAD
    assert log.outcome(log.epoch(2, OTHER)) is Outcome.NEW_EPOCH
    assert log.outcome(log.epoch(2, ME)) is Outcome.DEAD
    assert log.fold.holder == OTHER
    assert log.fold.dead_count == 2


def test_what_a_deposed_leader_writes_is_dead(log: Log) -> None:
    zombie, beat = log.bytes(b"too late"), log.beat()
    log.apply_record(log.epoch(2, OTHER))
    assert log.outcome(zombie) is Outcome.DEAD
    assert log.outcome(beat) is Outcome.DEAD
    assert log.fold.end == 8


def test_what_was_accepted_before_the_epoch_stays(log: Log) -> None:
    candidate = log.epoch(2, OTHER)
    log.apply_record(log.bytes(b"accepted meanwhile"))
    assert log.outcome(candidate) is Outcome.NEW_EPOCH
    assert log.fold.end == 26


def test_a_doubled_record_counts_once(log: Log) -> None:
    once = log.bytes(b"once")
    assert log.outcome(once) is Outcome.ACCEPTED
    assert log.outcome(once) is Outcome.ALREADY_HAD
    half = log.bytes(b"half", is_last=False)
    assert log.outcome(half) is Outcome.GATHERED
    assert log.outcome(half) is Outcome.ALREADY_HAD
    assert log.outcome(log.bytes(b"end")) is Outcome.ACCEPTED
    assert log.fold.end == 19


def test_a_second_copy_at_one_offset_is_stepped_over(log: Log) -> None:
    offset = len(log.records) - 1
    for _ in range(2):
        step = log.fold.apply_record(offset, log.records[offset])
        assert step == Step(Outcome.ALREADY_HAD)
    assert (log.fold.repeated_count, log.fold.next_offset) == (2, offset + 1)
    assert log.outcome(log.bytes(b"next")) is Outcome.ACCEPTED


@pytest.mark.parametrize("other", [b"", b"no record", encode(GENESIS)])
def test_two_records_at_one_offset_halt_where_they_differ(log: Log, other: bytes) -> None:
    offset = len(log.records) - 1
    with pytest.raises(LogDamaged, match=rf"Record {offset} .* two that differ, CRC-32 [0-9a-f]{{8}} and"):
        log.fold.apply_record(offset, other)
    with pytest.raises(Halted, match="two that differ"):
        log.apply_record(log.beat())


def test_a_record_that_comes_after_a_later_one_halts(log: Log) -> None:
    with pytest.raises(LogDamaged, match=r"Record 1 .* after record 2: its answer is out of order"):
        log.fold.apply_record(1, log.records[1])


def test_a_fold_of_a_checkpoint_halts_at_a_record_from_before(log: Log) -> None:
    fold = Fold.thaw(json.loads(json.dumps(log.fold.freeze())))
    with pytest.raises(LogDamaged, match="after record 2: its answer is out of order"):
        fold.apply_record(2, log.records[2])


def test_a_sign_of_life_that_was_doubled_and_came_late_is_stepped_over(log: Log) -> None:
    forgets = replace(log.beat(), body=b'{"forget":"b"}')
    assert log.outcome(forgets) is Outcome.ALIVE
    log.fold.holdings.apply_record({"node": "b", "next_record": 0})
    log.apply_record(log.bytes(b"more"))
    assert log.outcome(forgets) is Outcome.ALREADY_HAD
    assert log.fold.repeated_count == 1
    assert log.fold.holdings.of("b") is not None, "what it tells counts once"
    log.halts(replace(forgets, chain=5), "the leader is at 8, and the history ends at 12")


@pytest.mark.parametrize("is_thawed", [False, True])
def test_a_leader_that_is_at_an_earlier_end_halts_who_has_read_on(log: Log, is_thawed: bool) -> None:
    lost = log.fold.end, log.fold.chain
    log.apply_record(log.bytes(b"lost by the engine"))
    other = replace(log.epoch(2, OTHER), start=lost[0], chain=lost[1])
    assert log.outcome(other) is Outcome.NEW_EPOCH, "as an end may be accepted since a candidate has read"
    if is_thawed:
        log.fold = Fold.thaw(json.loads(json.dumps(log.fold.freeze())))
    log.halts(
        replace(log.beat(), start=lost[0], chain=lost[1]), "the leader is at 8, and the history ends at 26"
    )


def test_a_sign_of_life_names_the_end(log: Log) -> None:
    assert log.outcome(log.beat()) is Outcome.ALIVE
    log.apply_record(log.bytes(b"first", is_last=False))
    assert log.outcome(log.beat()) is Outcome.ALIVE
    log.apply_record(log.bytes(b"second"))
    log.halts(replace(log.beat(), start=8), "the leader is at 8, and the history ends at 19")


def test_a_sign_of_life_from_behind_the_end_tells_that_bytes_are_missing(log: Log) -> None:
    log.apply_record(log.bytes(b"first", is_last=False))
    with pytest.raises(LogDamaged, match=r"Record 4 .* bytes 13 to 20 of the history are missing"):
        log.apply_record(replace(log.beat(), start=20))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"start": 20}, "bytes 8 to 20 of the history are missing"),
        ({"chain": 5}, "two histories: the chain is another one"),
        ({"start": 0, "body": b"1234567x"}, "two histories: bytes 0 to 8 are not the same"),
        ({"start": 4}, "two histories: bytes 4 to 12 are not the same"),
        ({"start": 0, "body": b""}, "two histories"),
        ({"holder": OTHER}, "it is of epoch 1 .other holder.: an EPOCH is missing"),
        ({"epoch": 2}, "it is of epoch 2 .next.: an EPOCH is missing"),
        ({"epoch": 9}, "it is of epoch 9 .beyond.: an EPOCH is missing"),
    ],
)
def test_bytes_that_nobody_can_have_written_halt(log: Log, change: dict[str, object], why: str) -> None:
    log.halts(replace(log.bytes(b"newbytes"), **change), why)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epoch": 3}, "epoch 3 follows epoch 1: an EPOCH is missing"),
        ({"chain": 5}, "whoever wants to lead epoch 2 has another history"),
        ({"start": 4}, "has another history"),
        ({"start": 40}, "bytes 8 to 40 of the history are missing"),
    ],
)
def test_a_candidate_with_another_history_halts(log: Log, change: dict[str, object], why: str) -> None:
    log.halts(replace(log.epoch(2, OTHER), **change), why)  # type: ignore[arg-type]


def test_a_candidate_stands_on_accepted_bytes_alone(log: Log) -> None:
    half = log.bytes(b"half", is_last=False)
    log.apply_record(half)
    log.halts(replace(log.epoch(2, OTHER), start=12, chain=half.chain), "has another history")


def test_a_log_has_one_beginning(log: Log) -> None:
    log.halts(replace(GENESIS, start=8), "a second GENESIS")


def test_a_doubled_beginning_is_one_however_late_it_comes(log: Log) -> None:
    end = log.fold.end
    assert log.outcome(GENESIS) is Outcome.ALREADY_HAD
    assert (log.fold.end, log.fold.epoch, log.fold.repeated_count) == (end, 1, 1)
    assert log.outcome(log.bytes(b"next")) is Outcome.ACCEPTED


def test_a_log_begins_with_its_beginning() -> None:
    log = Log()
    log.halts(log.epoch(), "does not begin with a GENESIS")


@pytest.mark.parametrize("change", [{"kind": 7}, {"version": 2}])
def test_what_a_newer_version_wrote_halts(log: Log, change: dict[str, int]) -> None:
    log.halts(replace(log.beat(), **change), "a newer Tidewheel wrote it")  # type: ignore[arg-type]


def test_a_stray_line_is_stepped_over(log: Log) -> None:
    assert log.fold.apply_record(3, b"hello from a console producer").outcome is Outcome.FOREIGN
    stranger = encode(replace(GENESIS, cluster=b"x" * 16))
    assert log.fold.apply_record(4, stranger).outcome is Outcome.FOREIGN
    assert log.fold.foreign_count == 2
    assert log.fold.next_offset == 5


def test_a_garbled_record_is_read_four_times(log: Log) -> None:
    stored = encode(log.bytes(b"right"))
    garbled = stored[:-1] + b"X"
    for _ in range(3):
        assert log.fold.apply_record(3, garbled).outcome is Outcome.READ_AGAIN
    assert log.fold.apply_record(3, stored).outcome is Outcome.ACCEPTED
    for _ in range(3):
        log.fold.apply_record(4, garbled)
    with pytest.raises(Halted, match="4 times it did not match its CRC"):
        log.fold.apply_record(4, garbled)


def test_a_flush_without_an_end_halts(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FLUSH_BYTES_MAX", 10)
    log.apply_record(log.bytes(b"0123456789", is_last=False))
    log.halts(log.bytes(b"x", is_last=False), "a flush of more than 10 bytes")


def test_a_checkpoint_goes_on_before_an_unfinished_flush(log: Log) -> None:
    log.apply_record(log.bytes(b"first", is_last=False))
    frozen = json.loads(json.dumps(log.fold.freeze()))
    log.apply_record(log.bytes(b"second"))
    fold = Fold.thaw(frozen)
    assert fold.next_offset == 3
    for offset in range(3, len(log.records)):
        step = fold.apply_record(offset, log.records[offset])
    assert step.outcome is Outcome.ACCEPTED
    assert fold.freeze() == log.fold.freeze()


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "POSITIONS_MAX", 10)
    positions = Positions()
    for end in range(100):
        positions.add(end, 1000 + end)
    assert positions.count <= 10
    assert positions.first == Position(0, 1000)
    assert positions.chain_at(99) == 1099
    assert positions.chain_at(3) is None
