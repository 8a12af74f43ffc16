"""Broker time, which is real time or, with a virtual clock, real time plus an offset.

The core uses broker time. Callers use real time, including for due times. With a virtual clock, the offset is
added to the timestamps in requests and subtracted from the timestamps in responses. The offset never
decreases. The table `_CHANGES` lists the types that contain timestamps. A message with a delay of 60 seconds
becomes due after 60 seconds, regardless of the offset. Durations, such as leases and long polls, are not
converted. Cron schedules are evaluated in broker time. In a schedule occurrence, `at_ms` is converted like
any other timestamp, and `local` remains in the time zone of the schedule.

Real time is the time of the system clock, which can be stepped at any time. Steps are detected with a
monotonic clock (`counted_ms`). Each step is reported to the callback (`set_step_callback`) before the clock
returns a time after the step. Leases are measured in elapsed time, so clock steps do not affect them.

The offset of a virtual clock is saved in the store (`commitlog.layout`). `move` changes the offset in memory,
and `keep` makes the offset durable. An offset is made durable before the records appended at that offset are
flushed, so a restarted broker finds no records with timestamps in the future.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, cast

from commitlog import layout, store_format
from commitlog.disk.disk import Disk
from commitlog.records import properties
from commitlog.records.message import Message
from services.auth.tokens import Token
from services.broker.groups.group_values import (
    DeadLetter,
    DeadLetterPage,
    GroupStart,
    GroupView,
    MissedMessagesView,
    QueueView,
)
from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition
from services.broker.journal import JournalPage, StoredEntry
from services.broker.schedules.schedule_values import Occurrence, Schedule, ScheduleView
from services.broker.spine import verb_properties
from services.broker.spine.access import User
from services.broker.spine.values import (
    Delivery,
    HalfFilter,
    HalfPage,
    HalfView,
    PendingTimer,
    StartPosition,
    TimerFilter,
    TimerHold,
    TimerPage,
    TimerVerdict,
    Topic,
)
from services.broker.task_items import ItemsPage, StoredTaskItem
from services.broker.topic_changes import TopicChange, TopicUse
from services.live.clock_steps import ClockSteps
from services.live.errors import WrongClock
from tidewheel import property_names

ClockKind = Literal["real", "virtual"]
Told = TypeVar("Told")


class StoredClockOffset:
    """The stored offset of a virtual clock from real time, in milliseconds."""

    def __init__(self, disk: Disk, offset_ms: int) -> None:
        self._disk, self.offset_ms = disk, offset_ms
        self._kept_ms, self._turn = offset_ms, 0

    def keep(self) -> None:
        """Make the offset durable if it has changed. Raise `OSError` if the disk fails."""
        assert self.offset_ms >= self._kept_ms, "time does not go back"
        if self._kept_ms != self.offset_ms:
            layout.keep_clock(self._disk, self.offset_ms, self._turn)
            self._kept_ms, self._turn = self.offset_ms, self._turn + 1


def open_clock_offset(disk: Disk, kind: ClockKind) -> StoredClockOffset | None:
    """Return the clock offset of a store, or None if the store uses real time.

    Raise `WrongClock` if the store was written with a different kind of clock.
    """
    store_format.read(disk)
    offset_ms = layout.read_clock(disk)
    if kind == "real":
        if offset_ms is not None:
            raise WrongClock(
                "Its clock is virtual: serve it with --clock virtual, or choose another --store."
            )
        return None
    if offset_ms is None:
        if layout.has_records(disk):
            raise WrongClock("It holds records of real time: choose an empty folder for --clock virtual.")
        layout.begin_clock(disk)
    return StoredClockOffset(disk, offset_ms or 0)


def ignore_step(from_ms: int, until_ms: int) -> None:
    """Ignore a clock step."""


class Clock:
    """The clock of the core, which converts between broker time and the real time used by callers.

    `counted_ms` returns the time of a monotonic clock in milliseconds. If `counted_ms` is None, `real_ms` is
    assumed to be monotonic. Only `begin` is thread-safe.
    """

    def __init__(
        self,
        real_ms: Callable[[], int],
        kept: StoredClockOffset | None = None,
        counted_ms: Callable[[], float] | None = None,
    ) -> None:
        self.real_ms, self._kept = real_ms, kept
        self._steps = None if counted_ms is None else ClockSteps(real_ms, counted_ms)
        self._step_callback: Callable[[int, int], None] = ignore_step

    def set_step_callback(self, tell: Callable[[int, int], None]) -> None:
        """Set the callback for clock steps. The arguments are the broker times before and after the step."""
        self._step_callback = tell

    def begin(self) -> int:
        """Return the current broker time in milliseconds, and ignore all earlier clock steps."""
        if self._steps is not None:
            self._steps.begin()
        return self.real_ms() + self.offset_ms

    @property
    def lead_at_begin_ms(self) -> int:
        """Return the time by which real time led the monotonic clock at the last `begin`, in milliseconds."""
        return 0 if self._steps is None else round(self._steps.lead_at_begin_ms)

    @property
    def is_virtual(self) -> bool:
        """Return whether the clock is virtual and can be advanced."""
        return self._kept is not None

    @property
    def offset_ms(self) -> int:
        """Return the offset of broker time from real time, in milliseconds."""
        return 0 if self._kept is None else self._kept.offset_ms

    def now_ms(self) -> int:
        """Return the current broker time in milliseconds. Report a clock step first, if there was one."""
        real_ms = self.real_ms()
        if self._steps is not None and (step_ms := self._steps.detect_step(real_ms)):
            real_ms = self.real_ms()  # The clock may have been stepped after the first reading.
            now_ms = real_ms + self.offset_ms
            self._step_callback(now_ms - step_ms, now_ms)
            return now_ms
        return real_ms + self.offset_ms

    def move(self, offset_ms: int) -> None:
        """Set the offset of a virtual clock. The offset must not decrease."""
        assert self._kept is not None, "nobody moves real time"
        assert offset_ms >= self._kept.offset_ms, "time does not go back"
        self._kept.offset_ms = offset_ms

    def keep(self) -> None:
        """Make the offset durable if it has changed. Raise `OSError` if the disk fails."""
        if self._kept is not None:
            self._kept.keep()

    def to_broker_time(self, given: Told) -> Told:
        """Convert the timestamps in a value from real time to broker time. Numbers are not converted."""
        return cast(Told, _shift_times(given, self.offset_ms)) if self.offset_ms else given

    def to_real_time(self, told: Told) -> Told:
        """Convert the timestamps in a value from broker time to real time."""
        return cast(Told, _shift_times(told, -self.offset_ms)) if self.offset_ms else told


def _shift_times(value: Any, by_ms: int) -> Any:
    """Return a value, or a list of values, with all timestamps shifted by `by_ms`.

    A value of a type without timestamps is returned unchanged.
    """
    if type(value) in (list, tuple):
        return type(value)(_shift_times(one, by_ms) for one in value)
    changes = _CHANGES.get(type(value))
    if changes is None:
        return value
    changed = changes(value, by_ms)
    return value._replace(**changed) if hasattr(value, "_replace") else replace(value, **changed)


Changes = dict[str, Any]


def _shift_fields(*names: str) -> Callable[[Any, int], Changes]:
    """Return a function that shifts the named timestamp fields of a value and the timestamps in its message.

    The values 0 and None denote an unset timestamp and are not shifted.
    """

    def changes(value: Any, by_ms: int) -> Changes:
        found = {name: at_ms + by_ms for name in names if (at_ms := getattr(value, name))}
        message = getattr(value, "message", None)
        return found | {"message": _shift_times(message, by_ms)} if isinstance(message, Message) else found

    return changes


def _shift_nested_times(*names: str) -> Callable[[Any, int], Changes]:
    """Return a function that shifts the timestamps inside the named fields of a value."""
    return lambda value, by_ms: {name: _shift_times(getattr(value, name), by_ms) for name in names}


def _shift_message(message: Message, by_ms: int) -> Changes:
    due_ms = message.delivery_ms
    return {
        "born_ms": max(0, message.born_ms + by_ms),
        "delivery_ms": due_ms if due_ms is None or due_ms < 0 else due_ms + by_ms,
        "properties": verb_properties.with_shifted_time(message.properties, by_ms),
    }


def _shift_delivery(one: Delivery, by_ms: int) -> Changes:
    record = one.record
    moved = verb_properties.with_shifted_time(properties.of_record(record), by_ms)
    if (due_ms := moved.get(property_names.DUE_MS, "")).isdigit():
        moved = moved | {property_names.DUE_MS: str(max(0, int(due_ms) + by_ms))}
    changed = replace(
        record,
        properties=properties.encode(moved),
        born_ms=max(0, record.born_ms + by_ms),
        store_ms=record.store_ms + by_ms,
    )
    return {"record": changed, "visible_ms": one.visible_ms + by_ms if one.visible_ms else 0}


def _shift_timer_filter(wanted: TimerFilter, by_ms: int) -> Changes:
    """Return the shifted time bounds of a filter, without the bounds that have their default values."""
    nothing = TimerFilter()
    bounds = ("from_ms", "until_ms")
    given = {name: getattr(wanted, name) for name in bounds}
    return {name: at_ms + by_ms for name, at_ms in given.items() if at_ms != getattr(nothing, name)}


def _shift_timer_page(page: TimerPage, by_ms: int) -> Changes:
    # The cursor `after` remains in broker time, because the clock may be advanced before the next page is
    # queried.
    return {"timers": _shift_times(page.timers, by_ms)}


def _shift_start(start: GroupStart | LiteStart, by_ms: int) -> Changes:
    return {"at": start.at + by_ms} if start.kind in (StartPosition.TIME, LiteStartPosition.TIME) else {}


def _shift_half(view: HalfView, by_ms: int) -> Changes:
    said = verb_properties.with_shifted_time({verb_properties.VERDICT: view.verdict}, by_ms)
    late = tuple((event, at_ms + by_ms) for event, at_ms in view.late)
    return _HALF_TIMES(view, by_ms) | {"late": late, "verdict": said[verb_properties.VERDICT]}


def _shift_dead_letter(dead_letter: DeadLetter, by_ms: int) -> Changes:
    errors = {"first_error": dead_letter.first_error, "last_error": dead_letter.last_error}
    return _STORED(dead_letter, by_ms) | {name: _shift_error(said, by_ms) for name, said in errors.items()}


def _shift_error(error: str, by_ms: int) -> str:
    at_ms, _, words = error.partition(" ")
    return f"{int(at_ms) + by_ms} {words}" if at_ms.isdigit() else error


def _shift_schedule_view(view: ScheduleView, by_ms: int) -> Changes:
    return _WITHIN_SCHEDULE(view, by_ms) | _RUNS(view, by_ms)


_STORED: Final = _shift_fields("store_ms")
_HALF_TIMES: Final = _shift_fields("stored_ms", "due_ms", "next_check_ms", "ended_ms")
_WITHIN_SCHEDULE: Final = _shift_nested_times("schedule", "upcoming_runs")
_RUNS: Final = _shift_fields("last_ms", "passed_ms")
_CHANGES: Final[dict[type, Callable[[Any, int], Changes]]] = {
    StoredEntry: _shift_fields("store_ms"),
    JournalPage: _shift_nested_times("entries"),
    StoredTaskItem: _shift_fields("store_ms"),
    ItemsPage: _shift_nested_times("items"),
    Message: _shift_message,
    Delivery: _shift_delivery,
    PendingTimer: _shift_fields("due_ms", "stored_ms"),
    TimerVerdict: _shift_fields("ended_ms", "due_ms"),
    TimerFilter: _shift_timer_filter,
    TimerPage: _shift_timer_page,
    HalfFilter: _shift_fields("stored_before_ms"),
    HalfView: _shift_half,
    HalfPage: _shift_nested_times("halves"),
    GroupStart: _shift_start,
    LiteStart: _shift_start,
    TimerHold: _shift_fields("since_ms"),
    Topic: _shift_nested_times("hold"),
    TopicUse: _shift_nested_times("topic"),
    TopicChange: _shift_nested_times("use", "topic"),
    GroupView: _shift_nested_times("queues", "missed"),
    MissedMessagesView: _shift_fields("last_ms"),
    QueueView: _shift_fields("oldest_ms"),
    DeadLetter: _shift_dead_letter,
    DeadLetterPage: _shift_nested_times("dead_letters"),
    Schedule: _shift_fields("start_ms", "end_ms"),
    ScheduleView: _shift_schedule_view,
    Occurrence: _shift_fields("at_ms"),
    User: _shift_fields("made_ms"),
    Token: _shift_fields("made_ms", "expires_ms"),
}
