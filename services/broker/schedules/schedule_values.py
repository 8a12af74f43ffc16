"""Values that describe a schedule, such as its message template and missed-run policy.

A run is considered missed if it is more than `limits.SCHEDULE_LATE_MS_MAX` milliseconds late. Runs can be
missed because of a stopped broker, a full disk, or a clock step. Runs with shorter delays are sent under
every policy.

    policy  missed runs
    skip    no missed run is sent
    once    only the most recent due run is sent
    all     the newest `missed_max` runs are sent, oldest first, each with the time of the run
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from commitlog import limits
from commitlog.records.message import Message
from services.broker.schedules.recurrence import Recurrence, recurrence
from services.broker.spine.errors import IllegalSchedule
from tidewheel import property_names
from tidewheel.durations import away, span_text
from tidewheel.errors import BodyTooLarge
from tidewheel.message_rules import ELSEWHERE

_NAME: Final = re.compile(r"[!-.0-~]+")


class MissedRunPolicy(Enum):
    """The policies that determine which missed runs are sent."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class ScheduleState(Enum):
    """The state of a schedule.

    An ENDED schedule has no more runs. The next run of a FAULTY schedule cannot be computed.
    """

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ENDED = "ENDED"
    FAULTY = "FAULTY"


@dataclass(slots=True, frozen=True, kw_only=True)
class Schedule:
    """A recurring message. `start_ms` and `end_ms` are milliseconds since the Unix epoch."""

    name: str
    cron: str
    time_zone: str
    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_group: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    missed: MissedRunPolicy = MissedRunPolicy.ONCE
    missed_max: int = limits.SCHEDULE_MISSED_COUNT_DEFAULT
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def recurrence(self) -> Recurrence:
        """The recurrence of the schedule.

        Raise `IllegalSchedule` if the cron line or the time zone is no longer valid on this host.
        """
        return recurrence(self.cron, self.time_zone)

    def next_after(self, at_ms: int) -> int | None:
        """Return the first occurrence after a time in milliseconds since the Unix epoch, or None.

        Raise `IllegalSchedule` if the cron line or the time zone is invalid.
        """
        from_ms = at_ms if self.start_ms is None else max(at_ms, self.start_ms - 1)
        next_ms = self.recurrence.next_after(from_ms)
        return None if next_ms is None or (self.end_ms is not None and next_ms > self.end_ms) else next_ms

    def upcoming_runs(self, at_ms: int | None, count: int) -> tuple[Occurrence, ...]:
        """Return up to `count` occurrences, starting with the occurrence at `at_ms`."""
        found: list[Occurrence] = []
        while at_ms is not None and len(found) < min(count, limits.SCHEDULE_PREVIEW_COUNT_MAX):
            found.append(Occurrence(at_ms, self.recurrence.local(at_ms)))
            at_ms = self.next_after(at_ms) if len(found) < count else None
        return tuple(found)

    def message(self, occurrence_ms: int, now_ms: int) -> Message:
        """Return the message of an occurrence. The message id is unique to the occurrence."""
        marks = {property_names.SCHEDULE: self.name, property_names.OCCURRENCE_MS: str(occurrence_ms)}
        return self._message(f"{self.name}@{occurrence_ms}", self.properties | marks, now_ms)

    def template(self, now_ms: int) -> Message:
        """Return the message without the parts that depend on the occurrence, for validation."""
        return self._message(self.name, self.properties, now_ms)

    def _message(self, message_id: str, marked: dict[str, str], now_ms: int) -> Message:
        return Message(
            topic=self.topic,
            body=self.body,
            message_id=message_id,
            tag=self.tag,
            keys=self.keys,
            message_group=self.message_group,
            properties=marked,
            born_ms=now_ms,
        )


@dataclass(slots=True, frozen=True)
class Occurrence:
    """The time of a future run, in milliseconds since the Unix epoch and as local time."""

    at_ms: int
    local: str


@dataclass(slots=True, frozen=True)
class ScheduleView:
    """A schedule with its state and progress.

    `last_ms` is the time of the last sent run. `passed_ms` is the time up to which missed runs were dropped,
    or 0. `error` is the last error that occurred when a run was computed or sent.
    """

    schedule: Schedule
    state: ScheduleState
    upcoming_runs: tuple[Occurrence, ...]
    sent_count: int
    last_ms: int
    passed_ms: int
    error: str
    durable_at: int


def check_schedule(schedule: Schedule, now_ms: int) -> None:
    """Raise `IllegalSchedule` if a schedule is illegal, or `BodyTooLarge` if its body is too large."""
    check_schedule_name(schedule.name)
    check_cron(schedule.cron)
    check_window(schedule, now_ms)
    if not 1 <= schedule.missed_max <= limits.SCHEDULE_MISSED_COUNT_MAX:
        raise IllegalSchedule(
            f"It would make up {schedule.missed_max} missed runs; "
            f"allowed are 1 to {limits.SCHEDULE_MISSED_COUNT_MAX}."
        )
    if len(schedule.body) > limits.SCHEDULE_BODY_BYTES_MAX:
        raise BodyTooLarge(
            f"It has {len(schedule.body)} bytes, the limit for schedules is "
            f"{limits.SCHEDULE_BODY_BYTES_MAX}. {ELSEWHERE}"
        )
    check_has_occurrences(schedule, now_ms)


def check_schedule_name(name: str) -> None:
    """Raise `IllegalSchedule` if a schedule name is illegal."""
    if not _NAME.fullmatch(name) or len(name) > limits.SCHEDULE_NAME_CHARACTERS_MAX:
        raise IllegalSchedule(
            f"Its name {name[: limits.SCHEDULE_NAME_CHARACTERS_MAX]!r} must have 1 to "
            f"{limits.SCHEDULE_NAME_CHARACTERS_MAX} ASCII letters, digits or signs, without '/' and blanks."
        )


def check_cron(cron: str) -> None:
    """Raise `IllegalSchedule` if a cron line is too long."""
    if len(cron) > limits.SCHEDULE_CRON_CHARACTERS_MAX:
        raise IllegalSchedule(
            f"Its cron line has {len(cron)} characters, the limit is {limits.SCHEDULE_CRON_CHARACTERS_MAX}."
        )


def check_has_occurrences(schedule: Schedule, now_ms: int) -> None:
    """Raise `IllegalSchedule` if the schedule is invalid or has no occurrences."""
    if schedule.next_after(now_ms) is None:
        window = "" if schedule.end_ms is None else f" before its end, {away(schedule.end_ms - now_ms)}"
        raise IllegalSchedule(
            f"{schedule.cron!r} in {schedule.time_zone} never occurs{window}. "
            "Look at what a line gives: tidewheel schedule preview"
        )


def check_window(schedule: Schedule, now_ms: int, from_ms: int | None = None) -> None:
    """Raise `IllegalSchedule` if the start or the end of a schedule is out of range.

    The end must be later than the start and later than `from_ms`, which defaults to `now_ms`.
    """
    start_ms, end_ms = schedule.start_ms, schedule.end_ms
    start_max_ms, end_max_ms = now_ms + limits.DELAY_MS_MAX, now_ms + limits.CLOCK_OFFSET_MS_MAX
    if start_ms is not None and not 0 <= start_ms <= start_max_ms:
        raise IllegalSchedule(
            f"It starts {away(start_ms - now_ms)}; allowed is from 1970 to {span_text(limits.DELAY_MS_MAX)} "
            "from now."
        )
    if (
        end_ms is not None
        and not max(now_ms if from_ms is None else from_ms, start_ms or 0) < end_ms <= end_max_ms
    ):
        raise IllegalSchedule(
            f"It ends {away(end_ms - now_ms)}, which is past, not after its start, or more than "
            f"{span_text(limits.CLOCK_OFFSET_MS_MAX)} from now."
        )


def freeze_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON-serializable values. Empty optional values are omitted."""
    optional = {
        "tag": schedule.tag,
        "keys": list(schedule.keys),
        "message_group": schedule.message_group,
        "properties": schedule.properties,
    }
    bounds = {"start_ms": schedule.start_ms, "end_ms": schedule.end_ms}
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "topic": schedule.topic,
        "body": b64encode(schedule.body).decode(),
        "missed": schedule.missed.value,
        "missed_max": schedule.missed_max,
        **{name: value for name, value in optional.items() if value},
        **{name: value for name, value in bounds.items() if value is not None},
    }


def thaw_schedule(frozen: Mapping[str, Any]) -> Schedule:
    """Restore a schedule from the values that `freeze_schedule` returned."""
    plain = {"body": b64decode(frozen["body"]), "missed": MissedRunPolicy(frozen["missed"])}
    return Schedule(**dict(frozen) | plain | {"keys": tuple(frozen.get("keys", ()))})
