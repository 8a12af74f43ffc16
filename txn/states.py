"""The one table that says how a transaction ends: once, and the first to end it wins.

               COMMIT       ROLLBACK       EXPIRE     RESOLVE_COMMIT   RESOLVE_ROLLBACK
OPEN           COMMITTED    ROLLED_BACK    EXPIRED    COMMITTED        ROLLED_BACK
EXPIRED        refused      refused        again      COMMITTED        ROLLED_BACK
COMMITTED      again        refused        refused    again            refused
ROLLED_BACK    refused      again          refused    refused          again

COMMIT and ROLLBACK come from producers, EXPIRE from the check-back, the other two from an operator, who alone
may end what has expired. "Again": it is answered like the first time and changes nothing.
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
    RESOLVE_COMMIT = "RESOLVE_COMMIT"
    RESOLVE_ROLLBACK = "RESOLVE_ROLLBACK"


OUTCOMES: Final = {
    Event.COMMIT: State.COMMITTED,
    Event.ROLLBACK: State.ROLLED_BACK,
    Event.EXPIRE: State.EXPIRED,
    Event.RESOLVE_COMMIT: State.COMMITTED,
    Event.RESOLVE_ROLLBACK: State.ROLLED_BACK,
}
RESOLVING: Final = frozenset({Event.RESOLVE_COMMIT, Event.RESOLVE_ROLLBACK})
"""The events that come from an operator."""

_TRANSITIONS: Final = {(State.OPEN, event): outcome for event, outcome in OUTCOMES.items()} | {
    (State.EXPIRED, event): OUTCOMES[event] for event in RESOLVING
}
_REPEATS: Final = {(outcome, event): outcome for event, outcome in OUTCOMES.items()}


def after(state: State, event: Event) -> State | None:
    """Return the state after an event; None if the event is refused."""
    return _TRANSITIONS.get((state, event)) or _REPEATS.get((state, event))
