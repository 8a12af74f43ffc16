"""Refusals are counted by reason; the last ones are kept, cut and fit to be printed."""

from __future__ import annotations

from commitlog.limits import REFUSALS_KEPT
from services.auth.refusals import DETAIL_CHARACTERS_MAX, Refusal, Refusals


def test_refusals_are_counted_and_the_last_ones_kept_the_newest_first() -> None:
    refusals = Refusals(lambda: 7)
    for number in range(REFUSALS_KEPT + 1):
        refusals.add("skewed", "10.0.0.1", f"call {number}", "orders")
    refusals.add("unsigned", "10.0.0.2", "last")
    assert refusals.counts == {"skewed": REFUSALS_KEPT + 1, "unsigned": 1}
    latest = refusals.latest()
    assert len(latest) == REFUSALS_KEPT
    assert latest[0] == Refusal(7, "unsigned", "10.0.0.2", "", "last")
    assert refusals.latest(1, "skewed") == [
        Refusal(7, "skewed", "10.0.0.1", "orders", f"call {REFUSALS_KEPT}")
    ]
    assert refusals.latest(5, "none such") == []


def test_what_others_wrote_is_cut_and_cannot_steer_a_terminal() -> None:
    refusals = Refusals(lambda: 7)
    refusals.add("malformed", "::1", "\x1b[2J" + "x" * 10_000, "\r\n")
    [one] = refusals.latest()
    assert len(one.detail) == DETAIL_CHARACTERS_MAX
    assert (one.detail + one.who).isprintable()
