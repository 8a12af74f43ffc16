"""What a leader writes last: that it leaves, and nothing behind it."""

from __future__ import annotations

from random import Random

import pytest

from sharedlog.engine import Head
from sharedlog.errors import NotAccepted
from sharedlog.fold import Fold, Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode
from sharedlog.sink import SharedSink
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
NOWHERE = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))


class Nowhere:
    """A local log that keeps nothing."""

    appends_max = 1

    def append(self, first_offset: int, parts: object, epoch: int) -> None:
        """Keep nothing."""


def leading(engine: MemoryEngine) -> SharedSink:
    fold = Fold(CLUSTER)
    genesis = encode(SharedRecord(CLUSTER, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS))
    engine.found(genesis)
    fold.take(0, genesis)
    candidate = Candidate(fold, b"who leads epoch1", {"node": "a"})
    following = Head(1, candidate.epoch.holder, NOWHERE.position)
    assert engine.append_if(NOWHERE, [encode(candidate.epoch)], following) == 1
    fold.take(1, engine.records[1])
    return SharedSink(Nowhere(), engine, fold, lambda: 0)


@pytest.mark.parametrize("notes", [0, 1, 2])
def test_the_word_that_a_leader_leaves_is_its_last_whoever_writes_in_between(notes: int) -> None:
    engine = MemoryEngine(Random(1), NOWHERE)
    engine.is_well = True
    sink = leading(engine)
    sink.beat({"clock_ms": 1})
    for number in range(notes):
        hold = SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"node":"n%d"}' % number)
        engine.note(encode(hold))
    sink.leave("b")
    beats = [one for one in (decode(stored, CLUSTER) for stored in engine.records) if one.kind == Kind.BEAT]
    assert beats[-1].facts == {"leaves": True, "to": "b"}, "also where it had to be proven by another BEAT"
    end = engine.end_offset
    with pytest.raises(NotAccepted):
        sink.beat({})
    with pytest.raises(NotAccepted):
        sink.leave()
    assert engine.end_offset == end


@pytest.mark.parametrize("is_proving", [False, True])
def test_a_new_record_at_an_offset_that_was_read_is_no_acknowledgement(
    is_proving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MemoryEngine(Random(1), NOWHERE)
    engine.is_well = True
    sink = leading(engine)
    for number in range(3):
        sink.beat({"clock_ms": number})
    offsets = iter([None, 2] if is_proving else [2])
    monkeypatch.setattr(engine, "append_if", lambda *_: next(offsets))
    with pytest.raises(NotAccepted, match="got offset 2, and records up to 4 were read before"):
        sink.beat({"clock_ms": 3})
    assert sink.is_over
