"""Tests that a node reports a lost or changed leader record, and that the leader finds the fault."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from commitlog.log.sink import Zeros
from sharedlog.engine import Head, Stored
from sharedlog.errors import LogDamaged
from sharedlog.fold import Fold, Position
from sharedlog.holdings import Unreadable
from sharedlog.leading import Candidate, Leader
from sharedlog.reading import read_steps
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode, extend_chain
from sharedlog.sink import SharedSink
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
LOST = {
    "the first part of a flush": 3,
    "a middle part of a flush": 4,
    "the last part of a flush, before an EPOCH": 5,
    "an EPOCH": 7,
    "a flush of one, before BYTES": 8,
    "a flush of one, before a BEAT": 11,
}


class Nowhere:
    """A local log that discards all parts."""

    appends_max = 1

    def append(self, first_offset: int, parts: object, epoch: int) -> None:
        """Discard the parts."""


class PageEngine(MemoryEngine):
    """An engine that cannot read a range of records, as after a page checksum failure."""

    bad = range(0)

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        found = super().read(offset, bytes_max)
        if offset in self.bad:
            raise LogDamaged(f"Record {offset}: invalid page in block 17.", offset)
        return [one for one in found if one.offset not in self.bad]


class Play:
    """A log with records of two leaders. Dead records of the first leader follow the second EPOCH record."""

    def __init__(self, *, is_dense: bool = False) -> None:
        self.engine = PageEngine(Random(1))
        self.engine.is_well, self.engine.is_dense = True, is_dense
        self.fold = Fold(CLUSTER)
        self.add(genesis_of(CLUSTER))
        self.add(Candidate(self.fold, b"who leads epoch1", {"node": "a"}).epoch)
        first = Leader(self.fold)
        self.flush(first, 1)
        self.flush(first, 3)
        self.append_unchecked()
        late = first.make_flush([Zeros(7)])
        self.add(Candidate(self.fold, b"who leads epoch2", {"node": "b"}).epoch)
        second = Leader(self.fold)
        self.flush(second, 1)
        for one in late:
            self.add(one)
        self.append_unchecked()
        self.flush(second, 1)
        self.add(second.make_beat({}))
        self.sink = SharedSink(Nowhere(), self.engine, self.fold, lambda: 0)

    def add(self, record: SharedRecord) -> None:
        stored = encode(record)
        self.fold.apply_record(self.engine._land(stored), stored)

    def append_unchecked(self) -> None:
        self.add(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"node":"c"}'))

    def flush(self, leader: Leader, count: int) -> None:
        for one in leader.make_flush([Zeros(100 + part) for part in range(count)]):
            self.add(one)

    def word(self) -> Unreadable:
        """Return the report of a node that reads the log from the beginning and reaches the faulty record."""
        reader = Fold(CLUSTER)
        with pytest.raises(LogDamaged) as raised:
            for _ in read_steps(self.engine, reader):
                pass
        record = reader.next_offset if raised.value.record is None else raised.value.record
        return Unreadable(record, reader.end, raised.value.detail)


def test_the_log_is_what_the_cases_say() -> None:
    play = Play()
    kinds = [Kind(decode(one, CLUSTER).kind).name for one in play.engine.records]
    assert kinds == [
        "GENESIS",
        "EPOCH",
        *["BYTES"] * 4,
        "HOLD",
        "EPOCH",
        *["BYTES"] * 2,
        "HOLD",
        "BYTES",
        "BEAT",
    ]
    assert (play.fold.dead_count, play.fold.epoch) == (1, 2)


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("what", LOST)
def test_a_lost_record_is_named_by_a_reader_and_found_by_the_leader(what: str, *, is_dense: bool) -> None:
    play, lost = Play(is_dense=is_dense), LOST[what]
    play.engine.spoil(lost)
    word = play.word()
    assert lost <= word.record <= lost + 3, "the next one of a leader"
    assert play.sink.fault_at(word.record).startswith(f"Record {lost} is missing")


def test_a_record_that_is_named_and_is_sound_has_no_fault() -> None:
    play = Play()
    for record in range(play.engine.end_offset + 2):
        assert play.sink.fault_at(record) == ""


@pytest.mark.parametrize("record", range(1, 13))
def test_a_record_that_the_engine_cannot_read_is_found(record: int) -> None:
    play = Play()
    play.engine.bad = range(record, record + 1)
    assert f"Record {record}: invalid page" in play.sink.fault_at(record)


def test_an_engine_that_cannot_read_its_own_tables_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def bounds() -> tuple[int, int]:
        raise LogDamaged("PostgreSQL cannot read its own tables.")

    play = Play()
    monkeypatch.setattr(play.engine, "bounds", bounds)
    assert play.sink.fault_at(8) == "PostgreSQL cannot read its own tables."


def test_a_record_that_does_not_match_its_crc_is_found() -> None:
    play = Play()
    play.engine.spoil(8, play.engine.records[8][:-1] + b"X")
    said = "Record 8 does not match its CRC: 79 bytes are not what was written."
    assert [play.sink.fault_at(record) for record in (8, play.word().record)] == [said, said]


def test_what_was_trimmed_is_no_fault() -> None:
    play = Play()
    play.engine.spoil(8)
    play.engine.trim(9)
    assert [play.sink.fault_at(record) for record in (8, 9)] == ["", ""]


def test_a_leader_that_goes_on_from_a_checkpoint_remembers_what_lies_before_it() -> None:
    play = Play()
    play.sink._fold = Fold.thaw(play.fold.freeze())
    play.engine.spoil(8)
    assert play.sink.fault_at(9).startswith("Record 8 is missing")


def test_a_record_that_its_leader_spoiled_in_its_memory_is_found() -> None:
    play = Play()
    start, chain = play.fold.end, play.fold.chain
    body = bytes(7)
    bad = SharedRecord(
        *(CLUSTER, Kind.BYTES, 2, play.fold.holder, start, extend_chain(chain, start, body, 0), body)
    )
    play.add(bad)
    said = play.sink.fault_at(13)
    assert said.startswith(f"Record 13 of the shared log: of bytes {start} to {start + 7} of the history")
    assert "the leader of epoch 2 wrote them so: look at its memory" in said


def test_another_sound_record_in_the_place_of_a_leaders_is_found() -> None:
    play = Play()
    other = replace(decode(play.engine.records[8], CLUSTER), zeros=99)
    for rows in ([encode(other)], [b"a line of somebody else's"], [play.engine.records[8], encode(other)]):
        play.engine.spoil(8, *rows)
        assert play.sink.fault_at(9).startswith("Record 8 ")
