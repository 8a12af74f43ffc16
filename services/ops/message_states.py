"""How messages that were looked up stand, in the words of `explain`: waits, cancelled, delivered, open half.

A record in a queue is "stored". That of a timer says what became of the timer, that of a half how its
transaction is: each is asked where verbs decide by it, so that no two answers can differ.

Cost: a look at the timers' names for each timer among them; for halves one look by the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import TypedDict

from commitlog.errors import StoreDamaged
from commitlog.kinds import HALF_TOPIC, TIMER_TOPIC
from services.broker.values import Delivery, PendingTimer, TimerName, TimerVerdict
from services.explain.life import ending
from services.live.live_broker import LiveBroker
from txn.states import State

STORED: Final = "stored"
PENDING: Final = "pending"
MOVED: Final = "moved"
UNKNOWN: Final = "unknown"
"""Of a timer or half that ended longer ago than outcomes are kept."""
_HALVES: Final = {
    State.OPEN: "open",
    State.EXPIRED: "expired",
    State.COMMITTED: "committed",
    State.ROLLED_BACK: "rolled back",
}


class StateAnswer(TypedDict):
    """How a message stands: pending, cancelled, replaced, moved, delivered, fired, lost, stored, or a half.

    A half is open, expired, committed or rolled back; `note` says why.
    """

    state: str
    note: str


def end_of(live: LiveBroker, verdict: TimerVerdict) -> tuple[str, str]:
    """Return how a timer had ended before a verb, and why; empty where it had not, or nobody knows."""
    if verdict.end is None:
        return "", ""
    return ending(verdict.end, live.core.finding.ending(verdict.ended_offset))


def states_of(live: LiveBroker, topic: str, key: str, found: Sequence[Delivery]) -> Iterator[StateAnswer]:
    """Yield how each of the messages stands that were found by a key."""
    halves = {}
    if any(one.stored_topic == HALF_TOPIC for one in found):
        views = live.query(live.core.half_views.of_key, topic, key, len(found))
        halves = {view.half_offset: view for view in views}
    for one in found:
        if one.stored_topic == TIMER_TOPIC:
            yield _timer_state(live, one)
        elif one.stored_topic == HALF_TOPIC:
            view = halves.get(one.physical_offset)
            yield {
                "state": UNKNOWN if view is None else _HALVES[view.state],
                "note": f"because: {view.reason}" if view is not None and view.reason else "",
            }
        else:
            yield {"state": STORED, "note": ""}


def _timer_state(live: LiveBroker, one: Delivery) -> StateAnswer:
    try:
        found = live.timer(TimerName(one.message.topic, one.message.message_id))
    except StoreDamaged:
        return {"state": UNKNOWN, "note": "its record cannot be read"}
    if isinstance(found, PendingTimer):
        is_it = found.timer_offset == one.physical_offset
        return {"state": PENDING, "note": ""} if is_it else {"state": MOVED, "note": "to another time"}
    state, note = end_of(live, found)
    return {"state": state or UNKNOWN, "note": note}
