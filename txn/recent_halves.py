"""Recently sent half messages in memory, from which a commit is built without reading the log.

Most half messages end soon. The half messages are ordered by age, and the oldest are dropped when the total
size exceeds `RECENT_HALVES_BYTES_MAX`. The half messages are not part of the state of the broker, because a
dropped half message is read from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.message import Message

_OBJECTS_BYTES: Final = 1_500
"""The memory of a message in bytes, in addition to the bytes of its record."""


class Sent(NamedTuple):
    """A half message at an offset, with its content and the queue of its commit."""

    half_offset: int
    message: Message
    queue_id: int
    record_bytes: int


class RecentHalves:
    """The recently sent half messages that have not ended."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, Sent] = (
            OrderedDict()
        )  # The dictionary is ordered, so that the oldest half message is removed in constant time.
        self._bytes = 0

    def add(self, transaction_id: str, sent: Sent) -> None:
        """Add a half message, and drop the oldest half messages above the limit."""
        assert transaction_id not in self._sent, "two halves have one transaction id"
        self._sent[transaction_id] = sent
        self._bytes += sent.record_bytes + _OBJECTS_BYTES
        while self._bytes > limits.RECENT_HALVES_BYTES_MAX:
            _, oldest = self._sent.popitem(last=False)
            self._bytes -= oldest.record_bytes + _OBJECTS_BYTES
        assert (self._bytes > 0) == bool(self._sent), "the bytes are of other halves"

    def take(self, transaction_id: str) -> Sent | None:
        """Remove and return a half message, or return None if the half message was dropped."""
        sent = self._sent.pop(transaction_id, None)
        if sent is not None:
            self._bytes -= sent.record_bytes + _OBJECTS_BYTES
            assert self._bytes >= 0, "more bytes went than came"
        return sent
