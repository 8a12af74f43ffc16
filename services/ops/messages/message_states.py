"""The states of messages in the terms of `explain`, such as pending, cancelled, delivered, or open half.

A record in a queue is "stored", or "discarded" if its queue now begins after it. For a timer record, the
state is that of the timer, and for a half, the state is that of its transaction. The states are read from the
tables on which verbs base their decisions, so the answers of both are consistent.

Cost: a look-up of the timer ends for each timer, and a single look-up by key for halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import TypedDict

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from services.broker.spine.values import Delivery, HalfView, TimerVerdict
from services.broker.timers.timer_records import read_move_reason
from services.explain.life import DISCARDED_BY, ending, timer_offset_of, waiting, word
from services.live.live_broker import LiveBroker
from txn.states import State

STORED: Final = "stored"
DISCARDED: Final = word("discarded")
PENDING: Final = word("armed")
UNKNOWN: Final = "unknown"
"""Of a timer or half that ended longer ago than outcomes are kept."""
_HALVES: Final = {
    State.OPEN: word("half"),
    State.EXPIRED: word("expired"),
    State.COMMITTED: "committed",
    State.ROLLED_BACK: word("rolled back"),
}


class StateAnswer(TypedDict):
    """The state of a message: stored or discarded.

    A timer is pending, cancelled, replaced, moved, delivered, fired or lost. A half is open, expired,
    committed or rolled back. `note` contains the reason. `ended_ms` is the time at which a timer or a half
    ended, or null if it has not ended or the time is unknown.
    """

    state: str
    note: str
    ended_ms: str | None


def end_of(live: LiveBroker, verdict: TimerVerdict) -> tuple[str, str]:
    """Return the end of a timer before a verb and its cause.

    Both are empty for an unknown or pending timer.
    """
    if verdict.end is None:
        return "", ""
    finding = live.core.finding
    one = finding.ending(verdict.ended_offset)
    timer_offset = timer_offset_of(one)
    timer = None if timer_offset is None else finding.ending(timer_offset)
    return ending(verdict.end, one, timer)


def states_of(live: LiveBroker, topic: str, key: str, found: Sequence[Delivery]) -> Iterator[StateAnswer]:
    """Yield the state of each message that was found by a key."""
    halves = {}
    if any(one.stored_topic == HALF_TOPIC for one in found):
        views = live.query(live.core.half_views.find_by_key, topic, key, len(found))
        halves = {view.half_offset: view for view in views}
    for one in found:
        if one.stored_topic == TIMER_TOPIC:
            yield _timer_state(live, one)
        elif one.stored_topic == HALF_TOPIC:
            yield _half_state(halves.get(one.physical_offset))
        else:
            is_discarded = live.query(live.core.finding.is_discarded, one.record)
            yield _state(DISCARDED, DISCARDED_BY) if is_discarded else _state(STORED)


def _half_state(view: HalfView | None) -> StateAnswer:
    if view is None:
        return _state(UNKNOWN)
    return _state(_HALVES[view.state], f"because: {view.reason}" if view.reason else "", view.ended_ms)


def _timer_state(live: LiveBroker, one: Delivery) -> StateAnswer:
    """Return the state of the timer of a record. A moved timer has a record for each of its due times."""
    try:
        found = live.find_timer_verdict(one)
    except StoreDamaged:
        return _state(UNKNOWN, "its end cannot be read")
    if found is None:
        return _state(PENDING, waiting(read_move_reason(properties.of_record(one.record))))
    state, note = end_of(live, found)
    return _state(state or UNKNOWN, note, found.ended_ms)


def _state(state: str, note: str = "", ended_ms: int = 0) -> StateAnswer:
    return {"state": state, "note": note, "ended_ms": str(ended_ms) if ended_ms else None}
