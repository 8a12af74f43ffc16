"""State transitions of a transaction. The first event that ends the transaction determines the outcome.

               COMMIT       ROLLBACK       EXPIRE     RESOLVE_COMMIT   RESOLVE_ROLLBACK
OPEN           COMMITTED    ROLLED_BACK    EXPIRED    COMMITTED        ROLLED_BACK
EXPIRED        refused      refused        again      COMMITTED        ROLLED_BACK
COMMITTED      again        refused        refused    again            refused
ROLLED_BACK    refused      again          refused    refused          again

Producers send COMMIT and ROLLBACK, unanswered check-backs trigger EXPIRE, and operators send the other two
events. Only an operator can end an expired half message. "Again" means that the event has no effect and gets
the same response as the first one.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """States of a half message."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    EXPIRED = "EXPIRED"


class Event(Enum):
    """Events that can end a half message."""

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
"""Events of operators."""

_TRANSITIONS: Final = {(State.OPEN, event): outcome for event, outcome in OUTCOMES.items()} | {
    (State.EXPIRED, event): OUTCOMES[event] for event in RESOLVING
}
_REPEATS: Final = {(outcome, event): outcome for event, outcome in OUTCOMES.items()}


def after(state: State, event: Event) -> State | None:
    """Return the state after an event, or None if the event is rejected."""
    return _TRANSITIONS.get((state, event)) or _REPEATS.get((state, event))
