"""A clock that was set is told from one that goes."""

from __future__ import annotations

from services.live.jumps import Jumps


def test_a_clock_that_goes_has_not_jumped_however_long_nobody_looked() -> None:
    jumps = Jumps(1_000_000, 50.0)
    assert jumps.seen(1_000_000 + 86_400_000, 50.0 + 86_400_000) == 0


def test_a_clock_that_was_set_has_jumped_once_and_by_how_much() -> None:
    jumps = Jumps(1_000_000, 0.0)
    assert jumps.seen(1_000_010 + 3_600_000, 10.0) == 3_600_000
    assert jumps.seen(1_000_020 + 3_600_000, 20.0) == 0
    assert jumps.seen(1_000_030, 30.0) == -3_600_000


def test_small_corrections_are_no_jump() -> None:
    jumps = Jumps(0, 0.0)
    assert [jumps.seen(step * 1_500, step * 1_000.0) for step in range(1, 10)] == [0] * 9
