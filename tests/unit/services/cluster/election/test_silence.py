"""A node stands after silence in the log, by its rank, and not again and again."""

from __future__ import annotations

from services.cluster.election.silence import (
    PAUSE_MAX_MS,
    PAUSE_MIN_MS,
    RANK_MS,
    SILENCE_MS,
    UNFIT_MS,
    Silence,
)


def test_the_first_by_name_stands_first() -> None:
    silence = Silence(1_000)
    assert silence.stands_ms(0) == 1_000 + SILENCE_MS
    assert silence.stands_ms(2) == 1_000 + SILENCE_MS + 2 * RANK_MS


def test_each_record_of_the_leader_puts_it_off() -> None:
    silence = Silence(0)
    silence.heard(700)
    assert silence.stands_ms(0) == 700 + SILENCE_MS


def test_a_leader_that_leaves_is_followed_at_once() -> None:
    silence = Silence(0)
    silence.heard(700, leaves=True)
    assert silence.stands_ms(0) == 700
    assert silence.stands_ms(1) == 700 + RANK_MS


def test_whom_a_leader_names_stands_at_once_and_the_others_wait_as_in_silence() -> None:
    named, other = Silence(0), Silence(0)
    for one in (named, other):
        one.stood(600)
    named.heard(700, leaves=True, is_named=True)
    other.heard(700)
    assert named.stands_ms(3) == 700, "whatever its rank, and however lately it stood"
    assert other.stands_ms(0) >= 700 + SILENCE_MS
    named.stood(700)
    assert named.stands_ms(3) >= 700 + PAUSE_MIN_MS, "once: an attempt that failed is not repeated at once"


def test_who_is_unfit_stands_when_no_other_has() -> None:
    silence = Silence(0)
    for leaves, is_named in ((False, False), (True, False), (True, True)):
        silence.heard(700, leaves=leaves, is_named=is_named)
        assert silence.stands_ms(0, is_unfit=True) == silence.stands_ms(0) + UNFIT_MS
    silence.heard(700)
    assert silence.stands_ms(5) < 700 + SILENCE_MS + UNFIT_MS, "five others are before it"


def test_who_was_not_first_may_stand_again_with_the_next_silence() -> None:
    silence = Silence(0)
    silence.stood(1_500)
    silence.lost()
    silence.heard(1_600)
    assert silence.stands_ms(0) == 1_600 + SILENCE_MS
    silence.stood(silence.stands_ms(0))
    assert silence.stands_ms(0) == 1_600 + SILENCE_MS + PAUSE_MIN_MS, "nor does it count when pauses double"


def test_an_engine_that_does_not_answer_is_no_silence() -> None:
    silence = Silence(0)
    silence.heard(700, leaves=True)
    silence.away(60_000)
    assert silence.stands_ms(0) == 60_000 + SILENCE_MS


def test_attempts_that_lead_to_nothing_come_ever_more_rarely() -> None:
    silence, now_ms = Silence(0), 0
    pauses = []
    for _ in range(6):
        silence.stood(now_ms)
        silence.heard(now_ms)
        pauses.append(silence.stands_ms(0) - now_ms)
        now_ms = silence.stands_ms(0)
    assert pauses[:3] == [PAUSE_MIN_MS, 2 * PAUSE_MIN_MS, 4 * PAUSE_MIN_MS]
    assert pauses[-1] == PAUSE_MAX_MS


def test_a_node_that_has_led_may_stand_again_soon() -> None:
    silence = Silence(0)
    silence.stood(0)
    silence.led()
    silence.heard(100)
    assert silence.stands_ms(0) == 100 + SILENCE_MS
