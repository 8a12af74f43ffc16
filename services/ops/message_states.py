"""How messages that were looked up stand, in the words of `explain`: waits, cancelled, delivered, open half.

A record in a queue is "stored". That of a timer says what became of the timer, that of a half how its
transaction is: each is asked where verbs decide by it, so that no two answers can differ.

Cost: a look at the timers' ends for each timer among them; for halves one look by the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import TypedDict

from commitlog import properties
from commitlog.errors import StoreDamaged
from commitlog.kinds import HALF_TOPIC, TIMER_TOPIC
from services.broker.spine.values import Delivery, HalfView, TimerVerdict
from services.broker.timers.timer_records import move_reason
from services.explain.life import ending, waiting, word
from services.live.live_broker import LiveBroker
from txn.states import State

STORED: Final = "stored"
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
    """How a message stands: pending, cancelled, replaced, moved, delivered, fired, lost, stored, or a half.

    A half is open, expired, committed or rolled back; `note` says why. `ended_ms` is when a timer or half
    ended, null where it has not, or nobody knows.
    """

    state: str
    note: str
    ended_ms: str | None


def end_of(live: LiveBroker, verdict: TimerVerdict) -> tuple[str, str]:
    """Return how a timer had ended before a verb, and why; empty where it had not, or nobody knows."""
    if verdict.end is None:
        return "", ""
    return ending(verdict.end, live.core.finding.ending(verdict.ended_offset))


def states_of(live: LiveBroker, topic: str, key: str, found: Sequence[Delivery]) -> Iterator[StateAnswer]:
    """Yield how each of the messages stands that were found by a key."""
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
            yield _state(STORED)


def _half_state(view: HalfView | None) -> StateAnswer:
    if view is None:
        return _state(UNKNOWN)
    return _state(_HALVES[view.state], f"because: {view.reason}" if view.reason else "", view.ended_ms)


def _timer_state(live: LiveBroker, one: Delivery) -> StateAnswer:
    """Return how the timer of a record stands; one that was moved has a record for each of its times."""
    try:
        found = live.find_timer_verdict(one)
    except StoreDamaged:
        return _state(UNKNOWN, "its end cannot be read")
    if found is None:
        return _state(PENDING, waiting(move_reason(properties.of_record(one.record))))
    state, note = end_of(live, found)
    return _state(state or UNKNOWN, note, found.ended_ms)


def _state(state: str, note: str = "", ended_ms: int = 0) -> StateAnswer:
    return {"state": state, "note": note, "ended_ms": str(ended_ms) if ended_ms else None}
