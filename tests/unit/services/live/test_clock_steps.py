"""A clock that was set is told from one that goes."""

from __future__ import annotations

import pytest

from services.live.clock_steps import STEP_MS_MIN, ClockSteps


class Clocks:
    """A system clock and one that counts, whose next reads are so many ms late."""

    def __init__(self) -> None:
        self.wall_ms, self.counted_ms = 1_763_700_000_000, 50.25
        self.late_ms: list[float] = []
        self.jumps = ClockSteps(lambda: self.wall_ms, self.count)

    def count(self) -> float:
        if self.late_ms:
            self.passes(self.late_ms.pop(0))
        return self.counted_ms

    def passes(self, ms: float) -> None:
        self.wall_ms += round(ms)
        self.counted_ms += ms

    def seen(self) -> int:
        return self.jumps.detect_step(self.wall_ms)


def test_a_clock_that_goes_has_not_jumped_however_long_nobody_looked() -> None:
    clocks = Clocks()
    clocks.passes(86_400_000)
    assert clocks.seen() == 0


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000, 30, -30])
def test_a_clock_that_was_set_has_jumped_once_and_by_how_much(by_ms: int) -> None:
    clocks = Clocks()
    clocks.passes(10)
    clocks.wall_ms += by_ms
    assert clocks.seen() == by_ms
    clocks.passes(10)
    assert clocks.seen() == 0
    clocks.wall_ms -= by_ms
    assert clocks.seen() == -by_ms


@pytest.mark.parametrize("by_ms", [1, -1, 7, -7, STEP_MS_MIN - 1])
def test_small_corrections_add_up(by_ms: int) -> None:
    clocks, seen_ms = Clocks(), 0
    for count in range(1, 200):
        clocks.passes(1_000)
        clocks.wall_ms += by_ms
        seen_ms += clocks.seen()
        assert abs(count * by_ms - seen_ms) < STEP_MS_MIN


def test_a_pause_between_two_reads_is_no_step() -> None:
    clocks = Clocks()
    clocks.late_ms = [5_000]
    assert clocks.seen() == 0
    clocks.late_ms = [5_000, 300, 40]
    assert clocks.seen() == 0
    clocks.wall_ms += 60_000
    clocks.late_ms = [5_000, 300]
    assert clocks.seen() == 60_000
