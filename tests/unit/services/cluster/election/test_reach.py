"""Who complains of a leader that no client reaches, and when it leaves for that."""

from __future__ import annotations

from itertools import pairwise

from services.cluster.election.reach import (
    CALM_PAUSES,
    PAUSE_MAX_MS,
    PAUSE_MIN_MS,
    RECENT_MS,
    REPEAT_MS,
    UNREACHABLE_MS,
    ComplaintFilter,
    LeaderReachability,
)

NOW = 1_000_000


def test_who_gets_no_answer_for_long_complains_and_again_as_long_as_that_is_so() -> None:
    reach = LeaderReachability()
    reach.record_failure(1, NOW, NOW + UNREACHABLE_MS)
    assert reach.next_complaint(1, NOW + UNREACHABLE_MS - 1) is None
    assert reach.next_complaint(1, NOW + UNREACHABLE_MS) == 1
    later = NOW + UNREACHABLE_MS + REPEAT_MS
    reach.record_failure(1, later - 10, later)
    assert reach.next_complaint(1, later - 1) is None
    assert reach.next_complaint(1, later) == 2


def test_an_answer_takes_a_complaint_back() -> None:
    reach = LeaderReachability()
    reach.record_failure(1, NOW, NOW + UNREACHABLE_MS)
    reach.record_answer(NOW + UNREACHABLE_MS)
    assert reach.next_complaint(1, NOW + UNREACHABLE_MS) is None
    # A call that began before the answer tells only of what came behind it.
    reach.record_failure(1, NOW, NOW + UNREACHABLE_MS + 1)
    assert reach.next_complaint(1, NOW + UNREACHABLE_MS + 1) is None


def test_nobody_complains_unless_clients_call() -> None:
    reach = LeaderReachability()
    assert reach.next_complaint(0, NOW) is None
    reach.record_failure(1, NOW, NOW + 100)
    assert reach.next_complaint(1, NOW + 100 + max(UNREACHABLE_MS, RECENT_MS + 1)) is None


def test_a_complaint_is_of_one_epoch() -> None:
    reach = LeaderReachability()
    reach.record_failure(1, NOW, NOW + UNREACHABLE_MS)
    assert reach.next_complaint(2, NOW + UNREACHABLE_MS) is None
    reach.record_failure(2, NOW + UNREACHABLE_MS, NOW + UNREACHABLE_MS + 1)
    assert reach.next_complaint(2, NOW + UNREACHABLE_MS + 1) is None


def test_each_complaint_is_looked_into_once_and_none_amid_the_pause() -> None:
    leaving = ComplaintFilter()
    assert leaving.accept_complaint("b", (1, 1), NOW)
    assert not leaving.accept_complaint("b", (1, 1), NOW + 1)
    assert leaving.accept_complaint("c", (1, 1), NOW + 1)
    leaving.record_departure(NOW)
    assert not leaving.accept_complaint("b", (2, 2), NOW + PAUSE_MIN_MS - 1)
    assert leaving.accept_complaint("b", (2, 3), NOW + PAUSE_MIN_MS)


def test_nodes_that_hand_the_lead_to_and_fro_do_so_ever_more_rarely() -> None:
    leaving, now, times, number = ComplaintFilter(), NOW, [], 0
    while now < NOW + 10 * PAUSE_MAX_MS:
        number += 1
        if leaving.accept_complaint("b", (number, number), now):
            leaving.record_departure(now)
            times.append(now)
        now += REPEAT_MS
    gaps = [later - before for before, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] == PAUSE_MIN_MS
    assert gaps[-1] == PAUSE_MAX_MS


def test_after_calm_the_pause_is_short_again() -> None:
    leaving = ComplaintFilter()
    leaving.record_departure(NOW)
    leaving.record_departure(NOW + PAUSE_MIN_MS)
    calm = NOW + PAUSE_MIN_MS + CALM_PAUSES * 2 * PAUSE_MIN_MS
    leaving.record_departure(calm)
    assert leaving.accept_complaint("b", (9, 9), calm + PAUSE_MIN_MS)
