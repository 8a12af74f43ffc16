"""Tests that a leader's append is accepted only with proof, and that no write follows its step-down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from sharedlog.engine import Head
from sharedlog.errors import NotAccepted
from sharedlog.fold import Fold, Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode
from sharedlog.sink import SharedSink
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))


class Nowhere:
    """A local log that discards all parts."""

    appends_max = 1

    def append(self, first_offset: int, parts: object, epoch: int) -> None:
        """Discard the parts."""


def leading(engine: MemoryEngine, clock: Callable[[], int] = lambda: 0) -> SharedSink:
    fold = Fold(CLUSTER)
    genesis = encode(genesis_of(CLUSTER))
    engine.create_log(genesis)
    fold.apply_record(0, genesis)
    candidate = Candidate(fold, b"who leads epoch1", {"node": "a"})
    following = Head(1, candidate.epoch.holder, EMPTY_HEAD.position)
    assert engine.append_if(EMPTY_HEAD, [encode(candidate.epoch)], following) == 1
    fold.apply_record(1, engine.records[1])
    return SharedSink(Nowhere(), engine, fold, clock)


@pytest.mark.parametrize("notes", [0, 1, 2])
def test_the_word_that_a_leader_leaves_is_its_last_whoever_writes_in_between(notes: int) -> None:
    engine = MemoryEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    sink = leading(engine)
    sink.beat({"clock_ms": 1})
    for number in range(notes):
        hold = SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"node":"n%d"}' % number)
        engine.append_unchecked(encode(hold))
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
    engine = MemoryEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    sink = leading(engine)
    for number in range(3):
        sink.beat({"clock_ms": number})
    offsets = iter([None, 2] if is_proving else [2])
    monkeypatch.setattr(engine, "append_if", lambda *_: next(offsets))
    with pytest.raises(NotAccepted, match="got offset 2, and records up to 4 were read before"):
        sink.beat({"clock_ms": 3})
    assert sink.is_over


def folded(engine: MemoryEngine) -> Fold:
    """Return the fold of a reader that has read the whole log."""
    fold = Fold(CLUSTER)
    for offset, stored in enumerate(engine.records):
        fold.apply_record(offset, stored)
    return fold


def nothing(_: MemoryEngine) -> None:
    """Do nothing, so that no other node writes."""


def note(engine: MemoryEngine) -> None:
    engine.append_unchecked(
        encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"node":"n"}'))
    )


def lead(engine: MemoryEngine) -> None:
    """Make another node the leader in an engine that does not compare heads."""
    epoch = Candidate(folded(engine), b"who leads epoch2", {"node": "b"}).epoch
    engine.create_log(encode(epoch))


WRITES: list[Callable[[SharedSink], None]] = [
    lambda sink: sink.append(0, [b"a record"], 1),
    lambda sink: sink.beat({"clock_ms": 1}),
    lambda sink: sink.leave("b"),
]


@pytest.mark.parametrize("write", WRITES, ids=["append", "beat", "leave"])
@pytest.mark.parametrize("tells_offset", [True, False])
@pytest.mark.parametrize(
    ("others", "is_accepted"),
    [([nothing], True), ([note], True), ([note, note], True), ([lead], False), ([note, lead, note], False)],
)
def test_an_append_is_accepted_if_and_only_if_the_log_says_that_this_node_still_leads(
    write: Callable[[SharedSink], None],
    tells_offset: bool,
    others: list[Callable[[MemoryEngine], None]],
    is_accepted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like Kafka, the engine reports success for the records of a former leader."""
    engine, now_ms = MemoryEngine(Random(1)), 0
    engine.is_well = True
    sink = leading(engine, lambda: now_ms)
    for other in others:
        other(engine)
    take = engine.append_if
    # The offset of the BEAT that proves the append is always returned.
    answers = iter([tells_offset])

    def append_if(head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        offset = take(head, stored, following)
        return offset if next(answers, True) else None

    monkeypatch.setattr(engine, "append_if", append_if)
    now_ms = 7
    if is_accepted:
        write(sink)
        assert sink.proven_ms == 7
    else:
        with pytest.raises(NotAccepted, match="another node leads now"):
            write(sink)
        assert (sink.proven_ms, sink.is_over) == (0, True)
        written = engine.end_offset
        with pytest.raises(NotAccepted, match="leads no more"):
            sink.beat({})
        assert engine.end_offset == written
    is_flush = write is WRITES[0]
    assert folded(engine).end == (len(b"a record") if is_flush and is_accepted else 0)
