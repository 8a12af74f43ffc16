"""A node stands after silence in the log, by its rank, and not again and again."""

from __future__ import annotations

from services.cluster.election.candidacy_timer import (
    LEADER_TIMEOUT_MS,
    PAUSE_MAX_MS,
    PAUSE_MIN_MS,
    RANK_DELAY_MS,
    UNFIT_DELAY_MS,
    CandidacyTimer,
)


def test_the_first_by_name_stands_first() -> None:
    silence = CandidacyTimer(1_000)
    assert silence.candidacy_due_ms(0) == 1_000 + LEADER_TIMEOUT_MS
    assert silence.candidacy_due_ms(2) == 1_000 + LEADER_TIMEOUT_MS + 2 * RANK_DELAY_MS


def test_each_record_of_the_leader_puts_it_off() -> None:
    silence = CandidacyTimer(0)
    silence.record_leader_activity(700)
    assert silence.candidacy_due_ms(0) == 700 + LEADER_TIMEOUT_MS


def test_a_leader_that_leaves_is_followed_at_once() -> None:
    silence = CandidacyTimer(0)
    silence.record_leader_activity(700, leaves=True)
    assert silence.candidacy_due_ms(0) == 700
    assert silence.candidacy_due_ms(1) == 700 + RANK_DELAY_MS


def test_whom_a_leader_names_stands_at_once_and_the_others_wait_as_in_silence() -> None:
    named, other = CandidacyTimer(0), CandidacyTimer(0)
    for one in (named, other):
        one.record_candidacy(600)
    named.record_leader_activity(700, leaves=True, is_named=True)
    other.record_leader_activity(700)
    assert named.candidacy_due_ms(3) == 700, "whatever its rank, and however lately it stood"
    assert other.candidacy_due_ms(0) >= 700 + LEADER_TIMEOUT_MS
    named.record_candidacy(700)
    assert named.candidacy_due_ms(3) >= 700 + PAUSE_MIN_MS, (
        "once: an attempt that failed is not repeated at once"
    )


def test_who_is_unfit_stands_when_no_other_has() -> None:
    silence = CandidacyTimer(0)
    for leaves, is_named in ((False, False), (True, False), (True, True)):
        silence.record_leader_activity(700, leaves=leaves, is_named=is_named)
        assert silence.candidacy_due_ms(0, is_unfit=True) == silence.candidacy_due_ms(0) + UNFIT_DELAY_MS
    silence.record_leader_activity(700)
    assert silence.candidacy_due_ms(5) < 700 + LEADER_TIMEOUT_MS + UNFIT_DELAY_MS, "five others are before it"


def test_who_was_not_first_may_stand_again_with_the_next_silence() -> None:
    silence = CandidacyTimer(0)
    silence.record_candidacy(1_500)
    silence.record_defeat()
    silence.record_leader_activity(1_600)
    assert silence.candidacy_due_ms(0) == 1_600 + LEADER_TIMEOUT_MS
    silence.record_candidacy(silence.candidacy_due_ms(0))
    assert silence.candidacy_due_ms(0) == 1_600 + LEADER_TIMEOUT_MS + PAUSE_MIN_MS, (
        "nor does it count when pauses double"
    )


def test_an_engine_that_does_not_answer_is_no_silence() -> None:
    silence = CandidacyTimer(0)
    silence.record_leader_activity(700, leaves=True)
    silence.restart(60_000)
    assert silence.candidacy_due_ms(0) == 60_000 + LEADER_TIMEOUT_MS


def test_attempts_that_lead_to_nothing_come_ever_more_rarely() -> None:
    silence, now_ms = CandidacyTimer(0), 0
    pauses = []
    for _ in range(6):
        silence.record_candidacy(now_ms)
        silence.record_leader_activity(now_ms)
        pauses.append(silence.candidacy_due_ms(0) - now_ms)
        now_ms = silence.candidacy_due_ms(0)
    assert pauses[:3] == [PAUSE_MIN_MS, 2 * PAUSE_MIN_MS, 4 * PAUSE_MIN_MS]
    assert pauses[-1] == PAUSE_MAX_MS


def test_a_node_that_has_led_may_stand_again_soon() -> None:
    silence = CandidacyTimer(0)
    silence.record_candidacy(0)
    silence.record_success()
    silence.record_leader_activity(100)
    assert silence.candidacy_due_ms(0) == 100 + LEADER_TIMEOUT_MS
