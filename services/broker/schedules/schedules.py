"""Recurring messages, which are sent by a timer for each occurrence of a schedule.

Each occurrence is an ordinary message in the topic of the schedule, with the message id `<name>@<time>`. The
property `TW_SCHEDULE` contains the name of the schedule, and `TW_OCCURRENCE_MS` contains the time of the
occurrence. The record of an occurrence also advances the cursor of the schedule, from which the next
occurrence is computed. An occurrence is therefore never appended twice, even after a crash or a clock step.
Records in the topic `TW_SYS_SCHEDULE` (type 12) define schedules. Each body is a JSON object:

    verb    additional members     effect
    set     schedule, after_ms     creates or changes the schedule with occurrences after `after_ms`
    pause   name                   pauses the schedule
    resume  name, after_ms         resumes the schedule with occurrences after `after_ms`
    pass    name, until_ms         drops the missed runs up to `until_ms`
                                   (`services.broker.schedules.missed_runs`)
            trouble                if not empty, the error with which the dropped run was refused
    delete  name                   deletes the schedule

Rules:
- Occurrences are never sent early. If a timer fires early because the clock was set back, the timer is set
  again.
- The cursor of a deleted schedule is kept for one day (`commitlog.applied_limits`). A new schedule with the
  same name therefore does not repeat runs, even if the clock was set back.
- No occurrences are computed during log replay. Recovery sets a timer that fires immediately for each
  schedule, and the next occurrence is computed when it fires.
- No runs are sent while the disk is full. Once space is available again, the missed-run policy applies.

Cost: each occurrence needs one calendar search and one record about the size of the template. All templates
are kept in memory. A decision about missed runs requires many calendar searches
(`services.broker.schedules.missed_runs`), but the number of searches per tick is limited.

Limitation: time zone data comes from the host. After an update or a move to another host, future occurrences
are recomputed from the cursor. A run may then be skipped or repeated in local time.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import Any, Final

from commitlog import limits
from commitlog.facts.facts import (
    OfSchedule,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleRan,
    ScheduleResumed,
    ScheduleRunsDropped,
    ScheduleSet,
    Stamp,
    record_of,
)
from commitlog.snapshots.deferred_rows import NOTHING, DeferredRows
from services.broker.housekeeping import Housekeeping
from services.broker.schedules import missed_runs
from services.broker.schedules.schedule_values import (
    Occurrence,
    Schedule,
    ScheduleState,
    ScheduleView,
    check_cron,
    check_schedule,
    check_window,
    freeze_schedule,
    thaw_schedule,
)
from services.broker.sending import MessageSender
from services.broker.spine.errors import IllegalSchedule, ScheduleNotFound
from services.broker.spine.scheduler import Purpose, Scheduler
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, check_topic_name
from services.broker.spine.validation import check_message, check_type
from tidewheel.errors import ClientMistake, TidewheelError


@dataclass(slots=True)
class _ScheduleProgress:
    """A schedule with its progress.

    The policy has already been applied to missed runs up to `cleared_ms`.
    """

    schedule: Schedule
    number: int
    cursor_ms: int
    is_paused: bool = False
    sent_count: int = 0
    last_ms: int = 0
    passed_ms: int = 0
    trouble: str = ""
    durable_at: int = 0
    cleared_ms: int = 0
    pending: tuple[int, int | None] | None = None
    """The cursor and the first occurrence after the cursor, or None if the occurrence is not computed."""
    unreadable: str = ""
    """The error raised by the computation of the next occurrence.

    The error is not recorded in the log, because an update of the time zone data may fix it.
    """


class Schedules:
    """The schedules of a broker."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        topics: Topics,
        sending: MessageSender,
        housekeeping: Housekeeping,
        settings: BrokerSettings,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._topics = topics
        self._sending = sending
        self._housekeeping = housekeeping
        self._settings = settings
        self._by_name: dict[str, _ScheduleProgress] = {}
        self._by_number: dict[int, _ScheduleProgress] = {}
        self._deleted_cursors_ms: dict[str, int] = {}
        self._frozen: DeferredRows[str, _ScheduleProgress] = NOTHING
        self._last_number = 0
        self._body_bytes = 0
        self._searches = 0

    def page(self, after: str = "", count_max: int = limits.SCHEDULE_COUNT_MAX) -> list[ScheduleView]:
        """Return up to `count_max` schedules with names after `after`, sorted by name.

        Each view includes the next occurrence.
        """
        names = nsmallest(count_max, (name for name in self._by_name if name > after))
        return [self._view(self._by_name[name], 1) for name in names]

    def get(self, name: str, count: int) -> ScheduleView:
        """Return a schedule with its next `count` occurrences. Raise `ScheduleNotFound`."""
        return self._view(self._find_schedule(name), count)

    def names_of(self, topic: str) -> list[str]:
        """Return the names of the schedules of a topic, sorted."""
        return sorted(name for name, one in self._by_name.items() if one.schedule.topic == topic)

    def set(self, schedule: Schedule, now_ms: int) -> ScheduleView:
        """Create or replace a schedule. Do nothing if an identical schedule already exists.

        Raise `IllegalSchedule` if the schedule is illegal, or `DiskFull` if the disk is almost full. If the
        message is illegal, raise the same error as `MessageSender.send`.
        """
        self._housekeeping.refuse_new()
        check_schedule(schedule, now_ms)
        known = self._by_name.get(schedule.name)
        if known is not None and known.schedule == schedule:
            return self._view(known, 1)
        self._check_room(schedule, known)
        self._check_message(schedule, now_ms)
        after_ms = self._from_ms(schedule, now_ms)
        self._append(ScheduleSet(freeze_schedule(schedule), after_ms), now_ms)
        return self._view_after_change(schedule.name)

    def delete(self, name: str, now_ms: int) -> ScheduleView:
        """Delete a schedule, and return its last state. Raise `ScheduleNotFound`."""
        one = self._find_schedule(name)
        self._append(ScheduleDeleted(name), now_ms)
        return self._view(one, 0)

    def pause(self, name: str, now_ms: int) -> ScheduleView:
        """Pause a schedule. Raise `ScheduleNotFound` if it does not exist."""
        if self._find_schedule(name).is_paused:
            return self._view(self._find_schedule(name), 1)
        self._append(SchedulePaused(name), now_ms)
        return self._view_after_change(name)

    def resume(self, name: str, now_ms: int) -> ScheduleView:
        """Resume a schedule. Raise `ScheduleNotFound` if it does not exist.

        Occurrences before `now_ms` are not sent.
        """
        one = self._find_schedule(name)
        if not one.is_paused:
            return self._view(one, 1)
        self._append(ScheduleResumed(name, max(one.cursor_ms, now_ms)), now_ms)
        return self._view_after_change(name)

    def run_due_schedule(self, number: int, now_ms: int) -> None:
        """Send or drop the due run of a schedule, and set a timer for the next run."""
        one = self._by_number.get(number)
        if one is None or one.is_paused:
            return  # The schedule was deleted or paused after the timer fired.
        due_ms = self._next_ms(one)
        if due_ms is not None and due_ms <= now_ms:
            if self._housekeeping.is_refusing:
                self._scheduler.schedule(Purpose.SCHEDULE, number, now_ms + limits.SCHEDULE_FULL_RETRY_MS)
                return
            if self._is_late(one, due_ms, now_ms) and not self._reserve_searches(one):
                self._scheduler.schedule(Purpose.SCHEDULE, number, now_ms)
                return
            if self._decide_run(one, due_ms, now_ms):
                self._send(one, due_ms, now_ms)
            assert one.cursor_ms >= due_ms, f"the run at {due_ms} would be sent again"
        self._schedule_next_run(one)

    def reset_budget(self) -> None:
        """Reset the count of calendar searches at the end of a tick."""
        self._searches = 0

    def apply(self, fact: OfSchedule, stamp: Stamp) -> None:
        """Apply a change to a schedule, or advance the cursor of a schedule past a sent run."""
        if isinstance(fact, ScheduleRan):
            self._advance_past_run(fact)
            return
        self._drop_expired_cursors(stamp.store_ms)
        self._frozen.before_change(fact.name)
        if isinstance(fact, ScheduleSet):
            self._set(thaw_schedule(fact.schedule), fact.after_ms)
        one = self._by_name.get(fact.name)
        if one is None:
            return
        match fact:
            case ScheduleDeleted():
                self._remove_schedule(one)
            case SchedulePaused():
                self._pause_timer(one)
            case ScheduleResumed():
                one.is_paused, one.cursor_ms = False, fact.after_ms
                self._request_computation(one)
            case ScheduleRunsDropped():
                one.cursor_ms = one.passed_ms = max(one.cursor_ms, fact.until_ms)
                one.trouble = one.trouble if fact.trouble is None else fact.trouble
        one.durable_at = stamp.offset + 1

    def freeze(self) -> Any:
        """Return the schedules and the cursors of deleted schedules for a snapshot."""
        self._frozen.take_all()
        self._frozen = DeferredRows(
            self._by_name, lambda running: (running.schedule, _PROGRESS_OF(running)), _row
        )
        return {"running": self._frozen, "spent_ms": self._deleted_cursors_ms.copy()}

    def thaw(self, frozen: Any) -> None:
        """Restore the schedules and cursors from a snapshot."""
        self._deleted_cursors_ms = dict(frozen["spent_ms"])
        for one in frozen["running"]:
            self._add_schedule(
                thaw_schedule(one["schedule"]), **{name: one[name] for name in one if name != "schedule"}
            )

    # The methods below check schedules and decide whether a run is sent.

    def _from_ms(self, schedule: Schedule, now_ms: int) -> int:
        known = self._by_name.get(schedule.name)
        before_ms = known.cursor_ms if known else self._deleted_cursors_ms.get(schedule.name, 0)
        return max(before_ms, now_ms)

    def _check_room(self, schedule: Schedule, known: _ScheduleProgress | None) -> None:
        body_bytes = self._body_bytes + len(schedule.body) - (len(known.schedule.body) if known else 0)
        if known is None and len(self._by_name) >= limits.SCHEDULE_COUNT_MAX:
            raise IllegalSchedule(f"There are {len(self._by_name)} already. Delete some first.")
        if body_bytes > limits.SCHEDULE_BODIES_BYTES_MAX:
            raise IllegalSchedule(
                f"All bodies together may have {limits.SCHEDULE_BODIES_BYTES_MAX} bytes. Delete some first."
            )

    def _check_message(self, schedule: Schedule, now_ms: int) -> None:
        """Check the message of a schedule and the message type. Create the topic if necessary."""
        check_topic_name(schedule.topic)
        template = schedule.template(now_ms)
        check_message(template, template.message_type)
        check_type(template.message_type, self._topics.get_or_create(schedule.topic, now_ms))

    def _is_late(self, one: _ScheduleProgress, due_ms: int, now_ms: int) -> bool:
        """Return whether a run is missed and the policy has not been applied to it yet."""
        return due_ms > one.cleared_ms and now_ms - due_ms > limits.SCHEDULE_LATE_MS_MAX

    def _reserve_searches(self, one: _ScheduleProgress) -> bool:
        """Reserve the calendar searches for a decision. Return False if the limit per tick would be exceeded.

        The first reservation in a tick always succeeds.
        """
        searches = missed_runs.count_searches(one.schedule)
        if self._searches and self._searches + searches > limits.SCHEDULE_SEARCHES_PER_TICK_MAX:
            return False
        self._searches += searches
        return True

    def _decide_run(self, one: _ScheduleProgress, due_ms: int, now_ms: int) -> bool:
        """Return whether the policy permits the due run.

        If runs are dropped, append a record of the dropped runs.
        """
        if not self._is_late(one, due_ms, now_ms):
            return True
        # A single decision applies to all runs that are due at `now_ms`. Runs that the policy keeps are also
        # late, but no further decision must be made about them.
        one.cleared_ms = now_ms
        until_ms = missed_runs.find_cutoff_ms(one.schedule, one.cursor_ms, now_ms)
        if until_ms < due_ms:
            return True
        self._append(ScheduleRunsDropped(one.schedule.name, until_ms), now_ms)
        return False

    def _send(self, one: _ScheduleProgress, due_ms: int, now_ms: int) -> None:
        try:
            self._sending.send_scheduled(one.schedule.message(due_ms, now_ms), now_ms)
        except TidewheelError as error:
            self._append(ScheduleRunsDropped(one.schedule.name, due_ms, str(error)), now_ms)

    def _append(self, fact: OfSchedule, now_ms: int) -> None:
        """Append the record of a schedule change, which is applied immediately."""
        self._store.append(record_of(fact), now_ms)

    def _schedule_next_run(self, one: _ScheduleProgress) -> None:
        """Set the timer for the next run."""
        due_ms = None if one.is_paused else self._next_ms(one)
        if due_ms is not None:
            self._scheduler.schedule(Purpose.SCHEDULE, one.number, due_ms)

    # The methods below apply the effects of records.

    def _drop_expired_cursors(self, store_ms: int) -> None:
        """Remove expired cursors of deleted schedules, oldest first."""
        while self._deleted_cursors_ms:
            name, cursor_ms = next(iter(self._deleted_cursors_ms.items()))
            if cursor_ms > store_ms - self._store.applied.spent_schedules_kept_ms:
                return
            del self._deleted_cursors_ms[name]

    def _set(self, schedule: Schedule, after_ms: int) -> None:
        known = self._by_name.get(schedule.name)
        self._deleted_cursors_ms.pop(schedule.name, None)
        if known is None:
            self._add_schedule(schedule, cursor_ms=after_ms)
            return
        self._body_bytes += len(schedule.body) - len(known.schedule.body)
        assert self._body_bytes >= 0, "more bodies were let go than kept"
        known.schedule, known.cursor_ms, known.trouble, known.pending = schedule, after_ms, "", None
        known.unreadable = ""
        self._request_computation(known)

    def _remove_schedule(self, one: _ScheduleProgress) -> None:
        del self._by_name[one.schedule.name]
        del self._by_number[one.number]
        self._body_bytes -= len(one.schedule.body)
        assert len(self._by_name) == len(self._by_number), "a schedule without a name, or without a number"
        assert self._body_bytes >= 0, "more bodies were let go than kept"
        self._scheduler.cancel(Purpose.SCHEDULE, one.number)
        self._deleted_cursors_ms[one.schedule.name] = one.cursor_ms
        if len(self._deleted_cursors_ms) > self._store.applied.spent_schedules_max:
            del self._deleted_cursors_ms[next(iter(self._deleted_cursors_ms))]

    def _pause_timer(self, one: _ScheduleProgress) -> None:
        one.is_paused = True
        self._scheduler.cancel(Purpose.SCHEDULE, one.number)

    def _advance_past_run(self, run: ScheduleRan) -> None:
        one = self._by_name.get(run.name)
        if one is None:
            return
        self._frozen.before_change(run.name)
        if run.occurrence_ms > one.cursor_ms:
            one.cursor_ms = one.last_ms = run.occurrence_ms
            one.sent_count += 1
            one.trouble = ""

    def _add_schedule(self, schedule: Schedule, **fields: Any) -> None:
        assert schedule.name not in self._by_name, "a schedule without a name would run on"
        self._last_number += 1
        one = _ScheduleProgress(schedule, self._last_number, **fields)
        self._by_name[schedule.name] = self._by_number[one.number] = one
        self._body_bytes += len(schedule.body)
        assert len(self._by_name) == len(self._by_number), "a schedule without a name, or without a number"
        if not one.is_paused:
            self._request_computation(one)

    def _request_computation(self, one: _ScheduleProgress) -> None:
        """Set a timer that fires in the next tick, which then computes the next run."""
        if not one.is_paused:
            self._scheduler.schedule(Purpose.SCHEDULE, one.number, 0)

    # The methods below return views of schedules.

    def _find_schedule(self, name: str) -> _ScheduleProgress:
        one = self._by_name.get(name)
        if one is None:
            raise ScheduleNotFound(f"There is no {name!r}. See which there are: tidewheel schedule ls")
        return one

    def _view_after_change(self, name: str) -> ScheduleView:
        one = self._by_name[name]
        self._schedule_next_run(one)
        return self._view(one, 1)

    def _next_ms(self, one: _ScheduleProgress) -> int | None:
        """Return the time of the next run, or None if the schedule has ended or its cron line is invalid."""
        if one.pending is None or one.pending[0] != one.cursor_ms:
            try:
                one.pending = (one.cursor_ms, one.schedule.next_after(one.cursor_ms))
            except ClientMistake as error:
                one.unreadable = str(error)
                return None
        return one.pending[1]

    def _view(self, one: _ScheduleProgress, count: int) -> ScheduleView:
        next_ms = self._next_ms(one)
        state = ScheduleState.ENDED if next_ms is None else ScheduleState.ACTIVE
        if one.pending is None:
            state = ScheduleState.FAULTY
        if one.is_paused:
            state = ScheduleState.PAUSED
        is_coming = state is ScheduleState.ACTIVE and count > 0
        return ScheduleView(
            schedule=one.schedule,
            state=state,
            upcoming_runs=one.schedule.upcoming_runs(next_ms, count) if is_coming else (),
            sent_count=one.sent_count,
            last_ms=one.last_ms,
            passed_ms=one.passed_ms,
            error=one.unreadable or one.trouble,
            durable_at=one.durable_at,
        )


def preview(schedule: Schedule, now_ms: int, count: int) -> tuple[Occurrence, ...]:
    """Return up to `count` occurrences of a schedule without storing the schedule.

    The occurrences begin at the start of the schedule, even if the start is in the past. If the schedule has
    no start, the occurrences begin at `now_ms`. Raise `IllegalSchedule` if the schedule is invalid.
    """
    check_cron(schedule.cron)
    from_ms = now_ms if schedule.start_ms is None else min(now_ms, schedule.start_ms - 1)
    check_window(schedule, now_ms, from_ms)
    return schedule.upcoming_runs(schedule.next_after(from_ms), count)


_PROGRESS: Final = "cursor_ms", "is_paused", "sent_count", "last_ms", "passed_ms", "trouble"
_PROGRESS_OF: Final = attrgetter(*_PROGRESS)


def _row(name: str, running: tuple[Schedule, tuple[Any, ...]]) -> dict[str, Any]:
    schedule, progress = running
    return {"schedule": freeze_schedule(schedule), **dict(zip(_PROGRESS, progress, strict=True))}
