"""Errors of a running broker that relate to the disk, the clock, or the clients."""

from __future__ import annotations

from commitlog.errors import StoreError
from tidewheel.errors import Busy, ClientMistake, NotFound, RefusedByState


class IllegalAdvance(ClientMistake):
    """The clock cannot be advanced by the given time."""

    code = "TW-148"


class ClientNotFound(NotFound):
    """There is no such client."""

    code = "TW-157"


class ClockIsReal(RefusedByState):
    """The broker uses real time, which cannot be advanced."""

    code = "TW-164"


class DiskBehind(Busy):
    """The disk cannot keep up with the incoming messages."""

    code = "TW-225"


class AnswersUnread(Busy):
    """Clients are not reading the messages that were sent to them."""

    code = "TW-226"


class TooManyPolls(Busy):
    """Too many receive calls are open."""

    code = "TW-179"


class BrokerStops(Busy):
    """The broker is stopping, or no longer leads its cluster."""

    code = "TW-224"


class ResultUnknown(Busy):
    """The write may or may not be on disk."""

    code = "TW-171"


class StoreUnavailable(Busy):
    """The disk of the store fails, so nothing is served until it works again."""

    code = "TW-220"


class BrokerBroken(Busy):
    """The broker has met a bug and ends, so nothing is served."""

    code = "TW-223"


class WrongClock(StoreError):
    """The store was written with a different kind of clock."""

    code = "TW-106"


def make_read_error(error: OSError) -> StoreUnavailable:
    """Return the error to raise when a read from the store has failed with `error`."""
    return StoreUnavailable(f"Reading it failed ({error}). Ask again once it works.")
