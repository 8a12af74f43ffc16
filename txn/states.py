"""The one table that says how a transaction ends: once, and the first to end it wins.

           COMMIT        ROLLBACK        EXPIRE
OPEN       COMMITTED     ROLLED_BACK     EXPIRED
otherwise  an event that leads to the same state again changes nothing; any other is refused
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """What has become of a half message."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    EXPIRED = "EXPIRED"


class Event(Enum):
    """What can end a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    EXPIRE = "EXPIRE"


OUTCOMES: Final = {
    Event.COMMIT: State.COMMITTED,
    Event.ROLLBACK: State.ROLLED_BACK,
    Event.EXPIRE: State.EXPIRED,
}

_TRANSITIONS: Final = {(State.OPEN, event): outcome for event, outcome in OUTCOMES.items()}
_REPEATS: Final = {(outcome, event): outcome for event, outcome in OUTCOMES.items()}


def after(state: State, event: Event) -> State | None:
    """The state after an event; None if the event is refused."""
    return _TRANSITIONS.get((state, event)) or _REPEATS.get((state, event))
