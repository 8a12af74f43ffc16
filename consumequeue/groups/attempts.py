"""Delivery attempts for a message, with the first and last failure.

cause         reason why the lease ended
EXPIRED       the lease time expired
SET_ASIDE     the lease time expired after it had been changed by the consumer
GONE          the consumer had disconnected
GIVEN_UP      the consumer gave up the message (only in dead letters, not in lease records)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class Cause(IntEnum):
    """Why a lease ended without an acknowledgement."""

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
    """A failed delivery attempt: time in milliseconds since the Unix epoch, cause, and client."""

    at_ms: int
    cause: int
    client_id: str

    def __str__(self) -> str:
        by = f", consumer {self.client_id}" if self.client_id else ""
        return f"{self.at_ms} {_WORDS[Cause(self.cause)]}{by}"


class Attempts(NamedTuple):
    """Number of delivery attempts for a message, and the first and last failure."""

    made: int = 0
    first: Failure | None = None
    last: Failure | None = None

    def failed(self, failure: Failure | None) -> Attempts:
        """Return a copy with `failure` as the last failure.

        None adds no failure.
        """
        return Attempts(self.made, self.first or failure, failure or self.last)


NEVER: Final = Attempts()
