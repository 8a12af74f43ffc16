"""Executes a message's timer verb when the message is stored or its half message is committed.

A CANCEL verb is stored in the same record as its message: the `TW_CANCELS` property contains the timer's
offset and due time. A crash therefore loses both or neither. A MOVE or FIRE verb needs its own record, which
is appended just before the message. The `TW_TIMER_VERDICT` property contains a verb's result. Its first word
is the verdict.

A verb is checked when its message is sent. It is not checked again when a half message is committed, even if
the limits or the clock have changed.

A verb that specifies the wrong topic matches no timer, but its message is stored unless the verb is strict
(`refuse_unknown`). Verdicts are counted for the message's topic, because the timer topic in a verb may be
arbitrary text.

Limitation: a crash may preserve a MOVE or FIRE record but lose its message. The producer then receives no
response and resends the message. A resent FIRE verb then gets the verdict TOO_LATE, although the first
attempt fired the timer.
"""

from __future__ import annotations

from commitlog.records import properties
from commitlog.records.record import Record
from services.broker.spine import verb_properties
from services.broker.spine.errors import TimerUnknown
from services.broker.spine.values import TimerName, TimerVerdict, Verdict
from services.broker.spine.verb_properties import CarriedTimerVerb, VerbKind
from services.broker.timers.timers import Timers
from tidewheel import property_names


class VerbExecutor:
    """Executes the timer verbs in messages."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def refuse_unknown(self, carried: CarriedTimerVerb, now_ms: int) -> None:
        """Raise `TimerUnknown` if a strict verb names a timer that was never set or is forgotten."""
        if not carried.is_strict:
            return
        found = self._timers.find_timer(self._name(carried))
        if found is None or self._timers.is_forgotten(found, now_ms):
            raise TimerUnknown(
                f"Topic {carried.topic!r} has no timer {carried.name!r}, nor remembers one. Is "
                f"{verb_properties.TOPIC} the timer's topic? Without {verb_properties.STRICT} the message is "
                "stored, with the verdict NEVER_SET."
            )

    def execute(self, carried: CarriedTimerVerb, carrier: Record, now_ms: int) -> None:
        """Execute the verb in a message before the append, and add the verdict to the record."""
        name = self._name(carried)
        if carried.kind is VerbKind.CANCEL and (found := self._timers.find_waiting(name, now_ms)):
            self._add_verdict(carrier, "CANCELLED", {
                property_names.CANCELS: f"{found.timer_offset} {found.due_ms}",
                property_names.CANCELS_TOPIC: carried.topic,
            })  # fmt: skip
            self._timers.statistics.verdicts[Verdict.CANCELLED.value] += 1
            self._count(carrier, Verdict.CANCELLED)
        else:
            verdict = self._run_verb(carried, name, now_ms)
            self._add_verdict(carrier, _text(verdict), {})
            self._count(carrier, verdict.verdict)

    def _name(self, carried: CarriedTimerVerb) -> TimerName:
        by_key = TimerName(carried.topic, key=carried.name)
        return by_key if self._timers.find_timer(by_key) else TimerName(carried.topic, carried.name)

    def _run_verb(self, carried: CarriedTimerVerb, name: TimerName, now_ms: int) -> TimerVerdict:
        if carried.kind is VerbKind.MOVE:
            return self._timers.move_accepted(name, carried.to_ms, now_ms)
        if carried.kind is VerbKind.FIRE:
            return self._timers.fire(name, now_ms)
        return self._timers.cancel(name, "", now_ms)

    def _count(self, carrier: Record, verdict: Verdict) -> None:
        topic = properties.value_of(carrier.properties, property_names.REAL_TOPIC) or carrier.topic
        self._timers.statistics.carried_verdicts[topic, verdict.value] += 1

    def _add_verdict(self, carrier: Record, verdict: str, marks: dict[str, str]) -> None:
        kept = properties.decode(carrier.properties)
        carrier.properties = properties.encode(kept | {verb_properties.VERDICT: verdict} | marks)


def _text(verdict: TimerVerdict) -> str:
    if verdict.verdict in (Verdict.TOO_LATE, Verdict.ALREADY):
        return f"{verdict.verdict.value} at {verdict.ended_ms} offset {verdict.ended_offset}"
    return str(verdict.verdict.value)
