"""How often a message was given out, and what became of that: first and last failure.

cause         the lease ended because
EXPIRED       its time ran out
SET_ASIDE     its time ran out after its consumer had asked for another one
GONE          its consumer was gone
GIVEN_UP      its consumer gave the message up: in dead letters, never in a lease record
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class Cause(IntEnum):
    """Why a lease ended without acknowledgement."""

    EXPIRED = 1
    SET_ASIDE = 2
    GONE = 3
    GIVEN_UP = 4


_WORDS = {
    Cause.EXPIRED: "not acknowledged in time",
    Cause.SET_ASIDE: "set aside by its consumer",
    Cause.GONE: "its consumer was gone",
    Cause.GIVEN_UP: "given up by its consumer",
}


class Failure(NamedTuple):
    """An attempt that failed: when (ms since 1970), why, and whose it was."""

    at_ms: int
    cause: int
    client_id: str

    def __str__(self) -> str:
        by = f", consumer {self.client_id}" if self.client_id else ""
        return f"{self.at_ms} {_WORDS[Cause(self.cause)]}{by}"


class Attempts(NamedTuple):
    """The number of attempts at a message, and the first and the last that failed."""

    made: int = 0
    first: Failure | None = None
    last: Failure | None = None

    def failed(self, failure: Failure | None) -> Attempts:
        """Return the attempts with `failure` as the last; None, an end that is no failure, adds nothing."""
        return Attempts(self.made, self.first or failure, failure or self.last)


NEVER: Final = Attempts()
