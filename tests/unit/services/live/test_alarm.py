"""The alarm rings when the earliest thing is due, is never early, and is silent when nothing is."""

from __future__ import annotations

from collections.abc import Callable

from services.live.alarm import RECHECK_MS, Alarm


class Time:
    """A clock and its planned calls; `to` moves it on, making each call at its time."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.planned: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> int:
        return self.now_ms

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        entry = (self.now_ms + seconds * 1000, call)
        self.planned.append(entry)
        return Handle(self, entry)

    def to(self, now_ms: int) -> None:
        while due := [entry for entry in self.planned if entry[0] <= now_ms]:
            entry = min(due, key=lambda one: one[0])
            self.planned.remove(entry)
            self.now_ms = max(self.now_ms, int(entry[0]))
            entry[1]()
        self.now_ms = now_ms


class Handle:
    def __init__(self, time: Time, entry: tuple[float, Callable[[], None]]) -> None:
        self._time, self._entry = time, entry

    def cancel(self) -> None:
        if self._entry in self._time.planned:
            self._time.planned.remove(self._entry)


def ringing(time: Time) -> tuple[Alarm, list[int]]:
    rung: list[int] = []
    return Alarm(lambda: rung.append(time.now_ms), time.clock, time.call_later), rung


def test_it_rings_once_at_the_time_it_is_set_for() -> None:
    time = Time()
    alarm, rung = ringing(time)
    alarm.set(1_300)
    time.to(1_299)
    assert rung == []
    time.to(5_000)
    assert rung == [1_300]


def test_an_earlier_time_replaces_a_later_one_and_not_the_other_way_round() -> None:
    time = Time()
    alarm, rung = ringing(time)
    for due_ms in (1_500, 1_200, 1_400):
        alarm.set(due_ms)
    assert len(time.planned) == 1
    time.to(1_450)
    assert rung == [1_200]


def test_what_is_due_already_rings_at_once_but_not_within_the_call() -> None:
    time = Time()
    alarm, rung = ringing(time)
    alarm.set(10)
    assert rung == []
    time.to(1_000)
    assert rung == [1_000]


def test_nothing_due_plans_nothing() -> None:
    time = Time()
    alarm, _ = ringing(time)
    alarm.set(None)
    assert time.planned == []


def test_something_far_away_is_looked_at_again_because_clocks_jump() -> None:
    time = Time()
    alarm, rung = ringing(time)
    alarm.set(1_000 + 3_600_000)
    time.to(1_000 + RECHECK_MS)
    assert rung == [1_000 + RECHECK_MS]


def test_a_stopped_alarm_is_silent() -> None:
    time = Time()
    alarm, rung = ringing(time)
    alarm.set(1_100)
    alarm.stop()
    time.to(2_000)
    assert rung == []


def test_once_it_is_closed_it_never_rings_also_when_it_is_set_again() -> None:
    time = Time()
    alarm, rung = ringing(time)
    alarm.set(1_300)
    alarm.close()
    alarm.set(1_400)
    time.to(5_000)
    assert rung == []
    assert time.planned == []
