"""Tests the records that a leader creates and the conclusions that it draws from the engine's responses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.log.sink import Part, Zeros
from commitlog.records.record import Record, blank, encode
from sharedlog import record
from sharedlog.errors import Halted
from sharedlog.fold import Fold, Outcome
from sharedlog.leading import Candidate, Leader, Proof
from sharedlog.record import encode as encode_shared
from tests.genesis import genesis_of

CLUSTER, ME = b"c" * 16, b"m" * 16
GENESIS = genesis_of(CLUSTER)


def stored(body_bytes: int) -> bytes:
    """Return the bytes of a single CommitLog record."""
    return encode(Record(topic="t", body=bytes(body_bytes)))


def led() -> tuple[Fold, Leader]:
    """Return a leader, and a fold in which this leader is the current holder."""
    fold = Fold(CLUSTER)
    fold.apply_record(0, encode_shared(GENESIS))
    candidate = Candidate(fold, ME, {"node": "a"})
    fold.apply_record(1, encode_shared(candidate.epoch))
    assert candidate.has_won(fold, None)
    return fold, Leader(fold)


@given(
    st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(100, 1500),
    st.booleans(),
)
def test_a_flush_is_cut_between_records(sizes: list[list[int]], bytes_max: int, closes: bool) -> None:
    parts: list[Part] = [b"".join(map(stored, one)) for one in sizes]
    if closes:
        parts += [blank(600), Zeros(592), stored(3)]
    fold, leader = led()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "BODY_BYTES_MAX", bytes_max)
        written = leader.make_flush(parts)
    lengths = [len(stored(size)) for one in sizes for size in [*one, 3]]
    for one in written:
        # A CommitLog record that exceeds the limit is sent in a BYTES record of its own.
        assert len(one.body) <= bytes_max or len(one.body) in lengths
    assert sum(one.end - one.start for one in written) == sum(map(len, parts))
    assert all(one.end == following.start for one, following in pairwise(written))
    assert [one.is_last for one in written] == [False] * (len(written) - 1) + [True]
    assert b"".join(one.body for one in written) == b"".join(
        bytes(part) for part in parts if not isinstance(part, Zeros)
    )
    outcomes = [fold.apply_record(2 + place, encode_shared(one)).outcome for place, one in enumerate(written)]
    assert outcomes[-1] is Outcome.ACCEPTED
    assert leader.position == fold.gathered


def test_a_success_at_the_next_offset_is_a_proof() -> None:
    fold, leader = led()
    leader.make_flush([stored(1)])
    assert leader.record_answer(2) is Proof.ACCEPTED
    leader.make_flush([stored(1)])
    assert leader.record_answer(3) is Proof.ACCEPTED
    assert fold.end == 0


@pytest.mark.parametrize("offset", [3, 7, None])
def test_any_other_success_proves_nothing_until_it_is_read(offset: int | None) -> None:
    fold, leader = led()
    (written,) = leader.make_flush([stored(1)])
    assert leader.record_answer(offset) is Proof.NOTHING
    # The next response does not prove the append either.
    assert leader.record_answer(offset and offset + 1) is Proof.NOTHING
    fold.apply_record(offset or 5, encode_shared(written))
    fold.apply_record((offset or 5) + 1, encode_shared(leader.make_beat({})))
    assert leader.check_proof(fold)
    leader.make_flush([stored(1)])
    assert leader.record_answer((offset or 5) + 2) is Proof.ACCEPTED


def test_what_the_fold_has_not_proves_nothing() -> None:
    fold, leader = led()
    leader.make_flush([stored(1)])
    leader.record_answer(None)
    assert not leader.check_proof(fold)
    with pytest.raises(AssertionError, match="behind one of which nobody knows"):
        leader.make_flush([stored(1)])


def test_who_was_second_does_not_lead() -> None:
    fold, _ = led()
    first, second = (Candidate(fold, holder, {}) for holder in (b"1" * 16, b"2" * 16))
    fold.apply_record(2, encode_shared(first.epoch))
    fold.apply_record(3, encode_shared(second.epoch))
    assert first.has_won(fold, None)
    assert not second.has_won(fold, None)


def test_a_candidate_finds_that_the_log_was_made_anew() -> None:
    fold, _ = led()
    candidate = Candidate(fold, ME, {})
    assert candidate.record_to_verify == 1
    fold.apply_record(2, encode_shared(candidate.epoch))
    with pytest.raises(Halted, match="Record 1 of the shared log is not what was read there before"):
        candidate.has_won(fold, 12345)


def test_only_who_knows_the_whole_history_stands() -> None:
    with pytest.raises(AssertionError, match="from its first record"):
        Candidate(Fold(CLUSTER), ME, {})
