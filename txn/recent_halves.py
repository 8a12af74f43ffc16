"""Recently sent halves are kept in memory, because most halves end soon, and their commits need not read the
log.

The halves are ordered by age, and the oldest are dropped when all together have more than
`RECENT_HALVES_BYTES_MAX`. The halves are not a part of the state, because a half that was dropped is read
from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.message import Message

_OBJECTS_BYTES: Final = 1_500
"""The memory of a message in addition to the bytes of its record."""


class Sent(NamedTuple):
    """A half at an offset, with its message and the queue of its commit."""

    half_offset: int
    message: Message
    queue_id: int
    record_bytes: int


class RecentHalves:
    """Halves that were sent and have not ended."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, Sent] = (
            OrderedDict()
        )  # ordered, so that the oldest is removed in constant time
        self._bytes = 0

    def add(self, transaction_id: str, sent: Sent) -> None:
        """Add a half, and drop the oldest halves beyond the limit."""
        assert transaction_id not in self._sent, "two halves have one transaction id"
        self._sent[transaction_id] = sent
        self._bytes += sent.record_bytes + _OBJECTS_BYTES
        while self._bytes > limits.RECENT_HALVES_BYTES_MAX:
            _, oldest = self._sent.popitem(last=False)
            self._bytes -= oldest.record_bytes + _OBJECTS_BYTES
        assert (self._bytes > 0) == bool(self._sent), "the bytes are of other halves"

    def take(self, transaction_id: str) -> Sent | None:
        """Remove and return a half, or return None if the half was dropped."""
        sent = self._sent.pop(transaction_id, None)
        if sent is not None:
            self._bytes -= sent.record_bytes + _OBJECTS_BYTES
            assert self._bytes >= 0, "more bytes went than came"
        return sent
