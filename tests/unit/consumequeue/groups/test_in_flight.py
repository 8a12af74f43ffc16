"""Tests the in-flight messages of a group against an oracle that uses sets."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.facts.lease_records import Kind, LeaseEntry
from consumequeue.groups.in_flight import InFlight, Lease, MessageGroups
from consumequeue.groups.offsets import GroupOffsets

QUEUE_END = 12
steps = st.lists(
    st.tuples(st.sampled_from(["lease", "finish", "return_message"]), st.integers(0, QUEUE_END - 1))
)


@given(steps)
def test_each_message_is_done_leased_or_comes_again_lowest_returned_first(
    script: list[tuple[str, int]],
) -> None:
    flight = InFlight(GroupOffsets())
    done: set[int] = set()
    leased: set[int] = set()
    returned: set[int] = set()
    fresh = set(range(QUEUE_END))
    for generation, (action, offset) in enumerate(script):
        if action == "lease":
            expected = min(returned - done, default=min(fresh - done, default=None))
            assert flight.candidate(QUEUE_END) == expected
            if expected is not None:
                flight.lease(Lease(generation, expected, 0))
                leased.add(expected)
                returned.discard(expected)
                fresh.discard(expected)
        elif action == "finish":
            flight.offsets.finish(offset, offset + 1)
            flight.finished([offset])
            done.add(offset)
            leased.discard(offset)
        elif offset in leased:
            flight.return_message(offset)
            leased.discard(offset)
            returned.add(offset)
        assert flight.leased_count == len(leased)
        assert flight.offsets.committed_offset == min(set(range(QUEUE_END + 1)) - done)


def test_an_attempt_under_way_counts_beside_those_that_ended() -> None:
    flight = InFlight(GroupOffsets(5))
    assert flight.candidate(6) == 5
    flight.lease(Lease(1, 5, 0))
    assert flight.attempts(5).made == 1
    flight.offsets.take(LeaseEntry(Kind.ENDED, 1, 1, 5, 0, 9, 0, "c", False, ""))
    flight.return_message(5)
    assert flight.attempts(5).made == 1
    assert flight.is_exhausted(5, 1)
    flight.lease(Lease(2, 5, 0))
    assert flight.attempts(5).made == 2
    assert not flight.is_exhausted(5, 1)


def test_a_lease_that_is_a_record_stands_after_a_start_and_nothing_passes_over_it() -> None:
    offsets = GroupOffsets()
    offsets.take(LeaseEntry(Kind.LEASED, 0, 1, 2, 7, 100, 0, "c", True, "a", attempt_id="r"))
    flight = InFlight(offsets)
    assert list(flight.leases()) == [
        Lease(7, 2, 100, client_id="c", consumer="c", message_group="a", attempt_id="r")
    ]
    assert flight.attempts(2).made == 1
    assert flight.unleased_until(0, 9) == 2
    assert flight.unleased_until(3, 9) == 9
    assert not flight.message_groups.is_free("a", 4)
    assert [flight.candidate(9), flight.next_offset] == [0, 0]
    offsets.finish(0, 2)
    flight.finished([0])
    assert flight.candidate(9) == 3, "what is leased is passed by"


@given(st.sets(st.integers(0, QUEUE_END - 1)), st.sets(st.integers(0, QUEUE_END - 1)), st.data())
def test_a_range_is_passed_over_up_to_the_first_lease_of_before_a_restart(
    restored: set[int], ended: set[int], data: st.DataObject
) -> None:
    """The leases may be located before or after the range, or may have ended in the meantime."""
    offsets = GroupOffsets()
    for generation, offset in enumerate(sorted(restored)):
        offsets.take(LeaseEntry(Kind.LEASED, 0, 1, offset, generation, 100, 0, "c", True, ""))
    flight = InFlight(offsets)
    for offset in restored & ended:
        flight.return_message(offset)
    first = data.draw(st.integers(0, QUEUE_END - 1))
    end = data.draw(st.integers(first + 1, QUEUE_END))
    leased = restored - ended
    assert flight.unleased_until(first, end) == min(leased & {*range(first, end)}, default=end)


@given(st.lists(st.sampled_from(["lease", "return_message", "park", "set_aside"]), max_size=30))
def test_nothing_fresh_is_given_out_while_too_much_is_leased_or_waits(script: list[str]) -> None:
    flight = InFlight(GroupOffsets())
    flight.lease(Lease(0, 0, 0, message_group="closed"))
    leased, ready, parked_or_aside = {0}, set[int](), set[int]()
    with patch.multiple(limits, IN_FLIGHT_PER_QUEUE_MAX=4, PARKED_PER_QUEUE_MAX=3):
        for generation, action in enumerate(script, 1):
            is_crowded = len(leased) + len(ready) >= 4 or len(parked_or_aside) >= 3
            assert flight.is_crowded == is_crowded
            offset = flight.candidate(QUEUE_END)
            if ready:
                assert offset == min(ready)
            else:
                assert (offset is None) == (is_crowded or flight.next_offset == QUEUE_END)
            if action == "return_message" and (others := leased - {0}):
                flight.return_message(max(others))
                leased.discard(max(others))
                ready.add(max(others))
            elif action == "lease" and offset is not None:
                flight.lease(Lease(generation, offset, 0))
                ready.discard(offset)
                leased.add(offset)
            elif action == "park" and offset == flight.next_offset:
                flight.park(offset, "closed")
                parked_or_aside.add(offset)
            elif action == "set_aside" and offset is not None:
                flight.set_aside(offset, 2, "")
                ready.discard(offset)
                parked_or_aside.add(offset)
            assert flight.waiting_count == len(ready) + len(parked_or_aside)


def test_a_message_group_that_was_never_given_a_message_has_waited_since_no_known_time() -> None:
    groups = MessageGroups()
    groups.keep_turn("never", 1)
    groups.leased("given", 2, 1_000)
    groups.park("given", 3)
    assert groups.waiting_since() == [1_000]
