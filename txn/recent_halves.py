"""The halves that were sent lately, as they came: most end soon, and a commit of one need not read the log.

By transaction id, the oldest first, which go when all together have more than `RECENT_HALVES_BYTES_MAX`. They
are no part of the state: what is not here the log tells.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.message import Message

_OBJECTS_BYTES: Final = 1_500
"""What a message takes in memory beside the bytes of its record."""


class Sent(NamedTuple):
    """A half that lies at an offset: its message, and the queue that its commit goes to."""

    half_offset: int
    message: Message
    queue_id: int
    record_bytes: int


class RecentHalves:
    """Halves that were sent and have not ended."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, Sent] = OrderedDict()  # whose first goes at no cost, however many went
        self._bytes = 0

    def add(self, transaction_id: str, sent: Sent) -> None:
        """Remember a half, and forget the oldest ones that there is no room for."""
        assert transaction_id not in self._sent, "two halves have one transaction id"
        self._sent[transaction_id] = sent
        self._bytes += sent.record_bytes + _OBJECTS_BYTES
        while self._bytes > limits.RECENT_HALVES_BYTES_MAX:
            _, oldest = self._sent.popitem(last=False)
            self._bytes -= oldest.record_bytes + _OBJECTS_BYTES
        assert (self._bytes > 0) == bool(self._sent), "the bytes are of other halves"

    def take(self, transaction_id: str) -> Sent | None:
        """Take a half out and return it; None if it is not remembered."""
        sent = self._sent.pop(transaction_id, None)
        if sent is not None:
            self._bytes -= sent.record_bytes + _OBJECTS_BYTES
            assert self._bytes >= 0, "more bytes went than came"
        return sent
