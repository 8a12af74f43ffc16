"""A group's progress against an oracle of sets; acknowledgement records; receipt handles."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import InvalidReceiptHandle
from consumequeue import acks, receipts
from consumequeue.acks import Acknowledged
from consumequeue.attempts import Failure
from consumequeue.offsets import Lease, Progress
from consumequeue.receipts import Receipt

QUEUE_END = 12
steps = st.lists(st.tuples(st.sampled_from(["lease", "finish", "give_back"]), st.integers(0, QUEUE_END - 1)))


@given(steps)
def test_each_message_is_done_leased_or_comes_again_lowest_returned_first(
    script: list[tuple[str, int]],
) -> None:
    progress = Progress()
    done: set[int] = set()
    leased: set[int] = set()
    returned: set[int] = set()
    fresh = set(range(QUEUE_END))
    for generation, (action, offset) in enumerate(script):
        if action == "lease":
            expected = min(returned - done, default=min(fresh - done, default=None))
            assert progress.candidate(QUEUE_END) == expected
            if expected is not None:
                progress.lease(Lease(generation, expected, 0))
                leased.add(expected)
                returned.discard(expected)
                fresh.discard(expected)
        elif action == "finish":
            progress.finish(offset)
            done.add(offset)
            leased.discard(offset)
        elif offset in leased:
            progress.give_back(offset, None if offset % 2 else Failure(0, 1, "c"))
            leased.discard(offset)
            returned.add(offset)
        assert progress.in_flight_count == len(leased)
        assert progress.low_offset == min(set(range(QUEUE_END + 1)) - done)


def test_attempts_count_from_one_and_a_stale_generation_is_not_held() -> None:
    progress = Progress(5)
    assert progress.candidate(6) == 5
    assert progress.lease(Lease(1, 5, 0)) == 1
    progress.give_back(5, Failure(0, 1, "c"))
    assert progress.lease(Lease(2, 5, 0)) == 2
    assert progress.held(5, 1) is None
    assert progress.held(5, 2) is not None


names = st.text("abcß%_-", min_size=1, max_size=30)
acknowledged = st.builds(
    Acknowledged, names, names, st.integers(0, 65535), st.sets(st.integers(0, 2**40)).map(acks.ranges_of)
)


@given(st.lists(acknowledged))
def test_acknowledgements_are_read_back(written: list[Acknowledged]) -> None:
    assert list(acks.decode(acks.encode(written))) == [one for one in written if one.ranges]


@given(st.sets(st.integers(0, 50)))
def test_ranges_cover_exactly_the_offsets(offsets: set[int]) -> None:
    ranges = acks.ranges_of(offsets)
    assert {offset for first, count in ranges for offset in range(first, first + count)} == offsets
    assert all(first + count < following for (first, count), (following, _) in pairwise(ranges))


def test_receipt_handles_are_read_back_and_foreign_ones_refused() -> None:
    receipt = Receipt(2, 101, 4096, 1_700_000_000_123, 30_000, 77)
    handle = receipts.encode(receipt, "broker-a")
    assert handle == "101 1700000000123 30000 0 0 broker-a 2 101 4096 77"
    assert receipts.decode(handle) == receipt
    for foreign in ("", "x", handle + " 1", handle.replace("77", "-7"), handle.replace("101", "¹01")):
        with pytest.raises(InvalidReceiptHandle):
            receipts.decode(foreign)


@pytest.mark.parametrize(
    ("min_offset", "expected"),
    [(0, 6), (2, 6), (3, 5), (4, 5), (5, 5), (6, 4), (8, 2), (9, 2), (10, 1), (11, 0)],
)
def test_what_is_gone_is_not_open_and_what_is_done_is_counted_once(min_offset: int, expected: int) -> None:
    progress = Progress()
    for offset in (0, 1, 3, 4, 8):
        progress.finish(offset)
    assert progress.open_count(min_offset, 11) == expected
