"""Execute the timer verb of a message when the message is stored or its half message is committed.

A CANCEL verb and its message are stored in a single record: the `TW_CANCELS` property contains the offset and
the due time of the timer. The cancellation and the message are therefore atomic. A MOVE or FIRE verb requires
a separate record, which is appended immediately before the message. The `TW_TIMER_VERDICT` property contains
the result of a verb, and begins with the verdict.

A verb is checked when its message is sent. It is not checked again when a half message is committed, even if
the limits or the clock have changed.

A verb with a wrong topic matches no timer. The message is still stored, unless the verb is strict
(`refuse_unknown`). Verdicts are counted by the topic of the message, because the timer topic in a verb may be
arbitrary text.

Limitation: a crash may preserve a MOVE or FIRE record but lose the message. The producer then receives no
response and sends the message again. The verdict of the repeated FIRE verb is TOO_LATE, although the first
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
    """Execute the timer verbs in messages."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def refuse_unknown(self, carried: CarriedTimerVerb, now_ms: int) -> None:
        """Raise `TimerUnknown` if the timer of a strict verb was never set or is forgotten."""
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
        """Execute the verb in a message, and add the verdict to the record of the message.

        The caller must append the record `carrier` afterwards.
        """
        name = self._name(carried)
        if carried.kind is VerbKind.CANCEL and (found := self._timers.find_pending_by_name(name, now_ms)):
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
            return self._timers.apply_accepted_move(name, carried.to_ms, now_ms)
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
