"""Verbs on timers in messages: executed when the message is stored, or when its half is committed.

A cancel and its message are one record: the message names the timer in `TW_CANCELS` (its offset and due
time), so a crash keeps both or neither. A move or fire needs a record of its own, appended right before the
message. The result is stored in the message as `TW_TIMER_VERDICT`; its first word is the verdict.

A verb is checked once, when its message is sent: a half is committed as accepted, even by a broker with other
limits or another clock.

A verb with the wrong topic finds no timer, and its message is stored all the same, unless the verb is strict
(`refuse_unknown`). So verdicts are counted by the message's topic: the timer's may be any text.

Weak spot: a crash may keep a move or a fire and lose the message right after it. Its producer gets no answer
and sends again; the verdict of a fire is then TOO_LATE although its own first try fired the timer.
"""

from __future__ import annotations

from commitlog import properties
from commitlog.record import Record
from services.broker.spine import verb_properties
from services.broker.spine.errors import TimerUnknown
from services.broker.spine.values import TimerName, TimerVerdict, Verdict
from services.broker.spine.verb_properties import CarriedVerb, VerbKind
from services.broker.timers.timers import Timers
from tidewheel import property_names


class Carrying:
    """The verbs carried by messages, executed on `timers`."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def refuse_unknown(self, carried: CarriedVerb, now_ms: int) -> None:
        """Raise `TimerUnknown` for a strict verb on a timer that was never set, or is forgotten."""
        if not carried.is_strict:
            return
        found = self._timers.known(self._name(carried))
        if found is None or self._timers.ends.is_forgotten(found.known_ms, now_ms):
            raise TimerUnknown(
                f"Topic {carried.topic!r} has no timer {carried.name!r}, nor remembers one. Is "
                f"{verb_properties.TOPIC} the timer's topic? Without {verb_properties.STRICT} the message is "
                "stored, with the verdict NEVER_SET."
            )

    def prepare(self, carried: CarriedVerb, carrier: Record, now_ms: int) -> None:
        """Write the verdict into a record before its append; a cancel has no other record."""
        name = self._name(carried)
        if carried.kind is VerbKind.CANCEL and (found := self._timers.pending(name, now_ms)):
            self._mark(carrier, "CANCELLED", {
                property_names.CANCELS: f"{found.timer_offset} {found.due_ms}",
                property_names.CANCELS_TOPIC: carried.topic,
            })  # fmt: skip
            self._timers.statistics.verdicts[Verdict.CANCELLED.value] += 1
            self._count(carrier, Verdict.CANCELLED)
        else:
            verdict = self._carry_out(carried, name, now_ms)
            self._mark(carrier, _text(verdict), {})
            self._count(carrier, verdict.verdict)

    def _name(self, carried: CarriedVerb) -> TimerName:
        by_key = TimerName(carried.topic, key=carried.name)
        return by_key if self._timers.known(by_key) else TimerName(carried.topic, carried.name)

    def _carry_out(self, carried: CarriedVerb, name: TimerName, now_ms: int) -> TimerVerdict:
        if carried.kind is VerbKind.MOVE:
            return self._timers.move_accepted(name, carried.to_ms, now_ms)
        if carried.kind is VerbKind.FIRE:
            return self._timers.fire(name, now_ms)
        return self._timers.cancel(name, "", now_ms)

    def _count(self, carrier: Record, verdict: Verdict) -> None:
        topic = properties.value_of(carrier.properties, property_names.REAL_TOPIC) or carrier.topic
        self._timers.statistics.carried_verdicts[topic, verdict.value] += 1

    def _mark(self, carrier: Record, verdict: str, marks: dict[str, str]) -> None:
        kept = properties.decode(carrier.properties)
        carrier.properties = properties.encode(kept | {verb_properties.VERDICT: verdict} | marks)


def _text(verdict: TimerVerdict) -> str:
    if verdict.verdict in (Verdict.TOO_LATE, Verdict.ALREADY):
        return f"{verdict.verdict.value} at {verdict.ended_ms} offset {verdict.ended_offset}"
    return str(verdict.verdict.value)
