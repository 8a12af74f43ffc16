"""Tests that the loss of a record that a process has read is detected, whichever copy the process uses."""

from __future__ import annotations

from random import Random

import pytest

from sharedlog.engine import Head, Stored
from sharedlog.errors import EngineUnavailable, Halted, LogDamaged
from sharedlog.fold import Fold, Position
from sharedlog.holdings import Holding
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.witness import LOST_MS, Witness
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
HOLDER = b"holder's 16 bytes"[:16]
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))


class Play:
    """A log that contains a GENESIS record, five HOLD records, and an EPOCH record.

    One fold has read all records, and another fold has read none.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.engine = MemoryEngine(Random(1), EMPTY_HEAD)
        self.engine.is_well = True
        self.engine.create_log(encode(genesis_of(CLUSTER)))
        for number in range(5):
            self.append_unchecked(number)
        head = Head(1, HOLDER, EMPTY_HEAD.position)
        epoch = SharedRecord(CLUSTER, Kind.EPOCH, 1, HOLDER, 0, CHAIN_AT_GENESIS, b"{}")
        self.engine.append_if(EMPTY_HEAD, [encode(epoch)], head)
        self.fold, self.begun_again = Fold(CLUSTER), Fold(CLUSTER)
        for offset, stored in enumerate(self.engine.records):
            self.fold.apply_record(offset, stored)
        self.begun_again.apply_record(0, self.engine.records[0])
        self.witness = Witness(lambda: self.now_ms)
        self.witness.record_progress(self.fold)

    def append_unchecked(self, number: int) -> None:
        body = encode_facts(Holding(number).facts("a"))
        self.engine.append_unchecked(encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, body)))

    def require_records(self, fold: Fold) -> None:
        """Verify that the first check raises `EngineUnavailable`, and repeat the check after `LOST_MS`."""
        with pytest.raises(EngineUnavailable, match="asked anew"):
            self.witness.require_records(self.engine, fold)
        self.now_ms += LOST_MS
        self.witness.require_records(self.engine, fold)


class BadPage(MemoryEngine):
    """An engine that cannot read record 6."""

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if offset == 6:
            raise LogDamaged("Record 6: invalid page in block 17.", 6)
        return super().read(offset, bytes_max)


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_record_that_is_gone_before_others_is_a_hole_for_a_fold_that_has_yet_to_read_it(
    *, is_there: bool, is_dense: bool
) -> None:
    play = Play()
    play.append_unchecked(9)
    play.engine.is_dense = is_dense
    if is_there:
        play.engine.__class__ = BadPage
    else:
        play.engine.spoil(6)
    with pytest.raises(
        LogDamaged, match="Record 6, which was read before, is missing or unreadable"
    ) as raised:
        play.witness.require_records(play.engine, play.begun_again)
    assert raised.value.record == 6
    play.witness.require_records(play.engine, play.fold)
    play.witness.verify_last_record(play.engine, play.fold)


def test_a_newest_record_that_has_changed_is_no_end_that_is_lost() -> None:
    play = Play()
    stored = play.engine.records[6]
    play.engine.spoil(6, stored[:-1] + bytes([stored[-1] ^ 4]))
    said = "Record 6 of the shared log does not match its CRC, and did when it was read before"
    with pytest.raises(LogDamaged, match=said) as raised:
        play.witness.require_records(play.engine, play.begun_again)
    assert raised.value.record == 6
    play.witness.require_records(play.engine, play.fold)
    play.witness.verify_last_record(play.engine, play.fold)
    play.engine.spoil(6, encode(SharedRecord(CLUSTER, Kind.EPOCH, 1, NOBODY, 0, CHAIN_AT_GENESIS, b"{}")))
    with pytest.raises(Halted, match="is another one now"):
        play.witness.verify_last_record(play.engine, play.fold)


def test_a_log_that_has_all_is_no_matter() -> None:
    play = Play()
    play.witness.require_records(play.engine, play.begun_again)
    play.engine.trim(7)
    play.witness.require_records(play.engine, play.begun_again)


def test_a_copy_that_begins_again_does_not_forget_what_the_engine_has_lost() -> None:
    play = Play()
    play.engine.lose_end()
    with pytest.raises(Halted, match="Record 6 of the shared log was read before, and is gone"):
        play.require_records(play.begun_again)


def test_a_log_that_has_grown_again_is_another_one() -> None:
    play = Play()
    play.engine.lose_end()
    while play.engine.end_offset < 9:
        play.append_unchecked(77)
    with pytest.raises(Halted, match="is another one now"):
        play.require_records(play.begun_again)


def test_a_checkpoint_that_reads_on_behind_the_end_is_a_witness_too() -> None:
    play = Play()
    play.witness = Witness(lambda: play.now_ms)
    play.engine.lose_end()
    play.fold.last_led = None  # A fold restored from a checkpoint has no such record.
    with pytest.raises(Halted, match="Record 6"):
        play.require_records(play.fold)


def test_what_is_there_again_in_time_was_an_answer_of_the_past() -> None:
    play = Play()
    records = list(play.engine.records)
    play.engine.lose_end()
    with pytest.raises(EngineUnavailable):
        play.witness.require_records(play.engine, play.begun_again)
    for one in records[play.engine.end_offset :]:
        play.engine.append_unchecked(one)
    play.now_ms += LOST_MS
    play.witness.require_records(play.engine, play.begun_again)


def test_a_leader_that_looks_behind_itself_finds_a_log_that_has_lost_its_end_and_grown_again() -> None:
    play = Play()
    play.witness.verify_last_record(play.engine, play.fold)
    play.engine.lose_end()
    # Either the record is lost, or the server returns an outdated response.
    play.witness.verify_last_record(play.engine, play.fold)
    while play.engine.end_offset < 9:
        play.append_unchecked(77)
    with pytest.raises(Halted, match="is another one now"):
        play.witness.verify_last_record(play.engine, play.fold)


class Standby(MemoryEngine):
    """A lagging standby, which raises an exception for reads beyond the end of its log."""

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if offset > self.end_offset:
            raise EngineUnavailable("It is a standby, and behind.")
        return super().read(offset, bytes_max)


def test_a_standby_that_is_behind_for_long_has_lost_nothing() -> None:
    play = Play()
    standby = Standby(Random(1))
    standby.is_well = True
    for one in play.engine.records[:3]:
        standby.append_unchecked(one)
    restarted = Witness(lambda: play.now_ms)
    play.fold.last_led = None  # A fold restored from a checkpoint has no such record.
    for _ in range(3):
        with pytest.raises(EngineUnavailable, match="standby"):
            restarted.require_records(standby, play.fold)
        play.now_ms += LOST_MS
    for one in play.engine.records[3:]:
        standby.append_unchecked(one)
    restarted.require_records(standby, play.fold)


def test_a_record_that_comes_where_another_one_was_read_is_told_from_it() -> None:
    play = Play()
    newest = Stored(6, play.engine.records[6], 0)
    assert not play.witness.is_replaced(newest)
    assert play.witness.is_replaced(newest._replace(stored=newest.stored + b"."))
    assert not play.witness.is_replaced(newest._replace(offset=5, stored=b"a word")), "words are said again"
    assert not Witness(lambda: 0).is_replaced(newest)
