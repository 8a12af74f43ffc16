"""Schedules for callers in the loop: answers rest on durable records, and times are those of callers.

On a virtual clock a cron line is kept by the broker's clock. What is told of it has two times: `at_ms` in the
time of callers, like every other time, and `local`, what the schedule's own clock will say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from services.broker.broker import Broker
from services.broker.schedule import Occurrence, Schedule, ScheduleView
from services.broker.schedules import preview
from services.live.clock import Clock


class Telling(Protocol):
    """Calls a verb of the core, and answers when what it says is durable."""

    def __call__(self, verb: Callable[..., ScheduleView], /, *arguments: object) -> Awaitable[ScheduleView]:
        """Return the verb's answer, or raise its refusal."""


class LiveSchedules:
    """The schedules of a broker. Errors are the core's `TidewheelError`s and `ResultUnknown`."""

    def __init__(self, core: Callable[[], Broker], told: Telling, clock: Clock) -> None:
        self._core, self._told, self._clock = core, told, clock

    async def set(self, schedule: Schedule) -> ScheduleView:
        """Keep a schedule, in place of one with its name."""
        inward = moved(schedule, self._clock.offset_ms)
        return self._outward(await self._told(self._core().schedules.set, inward))

    async def delete(self, name: str) -> ScheduleView:
        """End a schedule."""
        return self._outward(await self._told(self._core().schedules.delete, name))

    async def pause(self, name: str) -> ScheduleView:
        """Let a schedule rest."""
        return self._outward(await self._told(self._core().schedules.pause, name))

    async def resume(self, name: str) -> ScheduleView:
        """Let a schedule go on."""
        return self._outward(await self._told(self._core().schedules.resume, name))

    def get(self, name: str, count: int) -> ScheduleView:
        """Return a schedule with its next occurrences."""
        return self._outward(self._core().schedules.get(name, count))

    def page(self, after: str, count_max: int) -> list[ScheduleView]:
        """Return schedules with their next occurrence: by name, from behind a name on."""
        return [self._outward(view) for view in self._core().schedules.page(after, count_max)]

    def preview(self, schedule: Schedule, count: int) -> tuple[Occurrence, ...]:
        """Return when a schedule would occur from now on."""
        inward = moved(schedule, self._clock.offset_ms)
        return self._coming(preview(inward, self._clock.now_ms(), count))

    def _outward(self, view: ScheduleView) -> ScheduleView:
        offset_ms = self._clock.offset_ms
        return replace(
            view,
            schedule=moved(view.schedule, -offset_ms),
            coming=self._coming(view.coming),
            last_ms=view.last_ms and view.last_ms - offset_ms,
            passed_ms=view.passed_ms and view.passed_ms - offset_ms,
        )

    def _coming(self, coming: tuple[Occurrence, ...]) -> tuple[Occurrence, ...]:
        return tuple(replace(one, at_ms=one.at_ms - self._clock.offset_ms) for one in coming)


def moved(schedule: Schedule, by_ms: int) -> Schedule:
    """Return a schedule with its window moved."""
    start_ms, end_ms = schedule.start_ms, schedule.end_ms
    return replace(
        schedule,
        start_ms=None if start_ms is None else start_ms + by_ms,
        end_ms=None if end_ms is None else end_ms + by_ms,
    )
