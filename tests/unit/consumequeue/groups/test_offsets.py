"""Tests the offsets of a group against an oracle, and tests their records and receipt handles."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.facts import acks, lease_records
from commitlog.facts.acks import MessagesFinished
from commitlog.facts.lease_records import Kind, LeaseEntry
from consumequeue.groups import receipts
from consumequeue.groups.attempts import Attempts, Failure
from consumequeue.groups.offsets import GroupOffsets
from consumequeue.groups.receipts import Receipt
from tidewheel.errors import InvalidReceiptHandle

QUEUE_END = 12
offsets_below_end = st.integers(0, QUEUE_END - 1)
ended = st.builds(
    LeaseEntry,
    st.just(Kind.ENDED),
    st.integers(0, 3),
    st.integers(0, 5),
    offsets_below_end,
    st.just(0),
    st.integers(0, 9),
    st.just(0),
    st.sampled_from(["c", "d"]),
    st.just(False),
    st.just(""),
)
leased = st.builds(
    LeaseEntry,
    st.just(Kind.LEASED),
    st.just(0),
    st.integers(1, 5),
    offsets_below_end,
    st.integers(1, 99),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["c", "d"]),
    st.booleans(),
    st.sampled_from(["a", "b"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "r1"]),
    st.booleans(),
)
spans = st.tuples(st.integers(0, QUEUE_END - 1), st.integers(1, 5)).map(lambda one: [one[0], sum(one)])


@given(st.lists(st.one_of(spans, leased, ended), max_size=30))
def test_what_is_not_done_keeps_its_attempts_and_its_lease_until_that_ends(
    script: list[LeaseEntry | list[int]],
) -> None:
    offsets, done = GroupOffsets(), set()
    attempts: dict[int, Attempts] = {}
    leases: dict[int, LeaseEntry] = {}
    for said in script:
        if not isinstance(said, LeaseEntry):
            first, end = said
            offsets.finish(first, end)
            done |= set(range(first, end))
            attempts = {at: one for at, one in attempts.items() if at not in done}
            leases = {at: one for at, one in leases.items() if at not in done}
        else:
            offsets.take(said)
            at = said.queue_offset
            if said.kind is Kind.ENDED:
                leases.pop(at, None)
            if at not in done:
                known = attempts.get(at, Attempts())
                failure = Failure(said.at_ms, said.cause, said.client_id) if said.cause else None
                attempts[at] = Attempts(said.attempts, known.first or failure, failure or known.last)
                if said.kind is Kind.LEASED:
                    leases[at] = said
        assert {at for at in range(QUEUE_END) if offsets.is_done(at)} == {at for at in done if at < QUEUE_END}
        assert offsets.committed_offset == min(set(range(2 * QUEUE_END)) - done)
        assert {at: offsets.attempts(at) for at in range(QUEUE_END) if offsets.has_attempt(at)} == attempts
        assert offsets.leases == leases
        assert offsets.is_untouched == (not done and not attempts)
    thawed = GroupOffsets.thaw(offsets.freeze())
    assert thawed.freeze() == offsets.freeze()
    assert thawed.leases == {at: one._replace(attempts=attempts[at].made) for at, one in leases.items()}


def test_a_snapshot_says_apart_which_leases_a_takeover_has_lengthened() -> None:
    """A program that does not support the field can still read the rest of the snapshot."""
    offsets = GroupOffsets()
    entry = LeaseEntry(Kind.LEASED, 0, 1, 4, 77, 9_000, 5, "c", True, "a", attempt_id="r", is_lengthened=True)
    offsets.take(entry)
    frozen = offsets.freeze()
    assert frozen["leases"] == [[77, 4, 9_000, "c", "c", "a", False, False, "r", 5]]
    assert frozen.pop("lengthened") == [4]
    assert GroupOffsets.thaw(frozen).leases[4] == entry._replace(is_lengthened=False)


names = st.text("abcß%_-", min_size=1, max_size=30)
finished = st.builds(
    MessagesFinished,
    names,
    names,
    st.integers(0, 65535),
    st.sets(st.integers(0, 2**40)).map(acks.ranges_of),
    st.booleans(),
)


@given(st.lists(finished))
def test_what_is_finished_is_read_back(written: list[MessagesFinished]) -> None:
    assert list(acks.decode(acks.encode(written))) == [one for one in written if one.ranges]


@given(st.lists(leased))
def test_what_became_of_leases_is_read_back(written: list[LeaseEntry]) -> None:
    key = "g", "t", 3
    assert list(lease_records.decode(lease_records.encode([(key, written)]))) == [
        (key, one) for one in written
    ]


@given(st.text(max_size=300))
def test_text_is_read_back_as_it_was_clipped(words: str) -> None:
    assert acks.read_text(acks.text(words), 0)[0] == acks.clip(words)
    assert acks.clip(acks.clip(words)) == acks.clip(words)


@given(st.sets(st.integers(0, 50)))
def test_ranges_cover_exactly_the_offsets(offsets: set[int]) -> None:
    ranges = acks.ranges_of(offsets)
    assert {offset for first, count in ranges for offset in range(first, first + count)} == offsets
    assert all(first + count < following for (first, count), (following, _) in pairwise(ranges))


def test_receipt_handles_are_read_back_and_foreign_ones_refused() -> None:
    receipt = Receipt(2, 101, 4096, 1_700_000_000_123, 30_000, 77)
    handle = receipts.encode(*receipt, "broker-a")
    assert handle == "101 1700000000123 30000 0 0 broker-a 2 101 4096 77"
    assert receipts.decode(handle) == receipt
    assert receipts.generation_of(handle) == 77
    newer = receipts.encode(*receipt._replace(epoch=3), "broker-a")
    assert newer == "101 1700000000123 30000 0 0 broker-a 2 101 4096 3 77"
    assert receipts.decode(newer) == receipt._replace(epoch=3)
    assert receipts.generation_of(newer) == 77
    marked = handle.replace(" 0 0 ", " 1 0 "), handle.replace(" 0 0 ", "  0 ")
    long = handle + "9" * 5_000
    for foreign in (
        "",
        "x",
        handle + " 1 1",
        handle.replace(" 77", " x 77"),
        handle.replace(" 77", ""),
        handle.replace("77", "-7"),
        handle.replace("101", "¹01"),
        *marked,
        long,
    ):
        with pytest.raises(InvalidReceiptHandle):
            receipts.decode(foreign)


@pytest.mark.parametrize(
    ("min_offset", "expected"),
    [(0, 6), (2, 6), (3, 5), (4, 5), (5, 5), (6, 4), (8, 2), (9, 2), (10, 1), (11, 0)],
)
def test_what_is_gone_is_not_open_and_what_is_done_is_counted_once(min_offset: int, expected: int) -> None:
    offsets = GroupOffsets()
    for offset in (0, 1, 3, 4, 8):
        offsets.finish(offset, offset + 1)
    assert offsets.open_count(min_offset, 11) == expected


@given(st.lists(st.one_of(spans, st.sets(offsets_below_end, min_size=1)), max_size=20))
def test_offsets_that_are_taken_back_are_open_and_the_others_stay_done(
    script: list[list[int] | set[int]],
) -> None:
    """Reopened offsets may be below the committed offset, above it, or both.

    A range is finished, and a set is reopened.
    """
    offsets, done = GroupOffsets(), set[int]()
    for step in script:
        if isinstance(step, list):
            offsets.finish(*step)
            done |= {*range(*step)}
        elif back := sorted(step & done):
            offsets.reopen(back)
            done -= step
        assert offsets.committed_offset == min({*range(2 * QUEUE_END)} - done)
        assert {at for at in range(2 * QUEUE_END) if offsets.is_done(at)} == done
        assert GroupOffsets.thaw(offsets.freeze()).freeze() == offsets.freeze()
