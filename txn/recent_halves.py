"""Recently sent half messages, kept in memory to commit them without reading the log.

Most half messages end soon after they are sent. If their total size exceeds `RECENT_HALVES_BYTES_MAX`, the
oldest ones are dropped. They are not part of the broker's state, because a dropped half message can be read
from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.records.message import Message

_OBJECTS_BYTES: Final = 1_500
"""Memory overhead of a message in bytes, without its record."""


class Sent(NamedTuple):
    """A half message: offset, content, target queue, and record size in bytes."""

    half_offset: int
    message: Message
    queue_id: int
    record_bytes: int


class RecentHalves:
    """Recently sent half messages that have not ended."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, Sent] = (
            OrderedDict()
        )  # The dictionary is ordered, so the oldest half message can be removed in constant time.
        self._bytes = 0

    def add(self, transaction_id: str, sent: Sent) -> None:
        """Add a half message. Drop the oldest half messages if the size limit is exceeded."""
        assert transaction_id not in self._sent, "two halves have one transaction id"
        self._sent[transaction_id] = sent
        self._bytes += sent.record_bytes + _OBJECTS_BYTES
        while self._bytes > limits.RECENT_HALVES_BYTES_MAX:
            _, oldest = self._sent.popitem(last=False)
            self._bytes -= oldest.record_bytes + _OBJECTS_BYTES
        assert (self._bytes > 0) == bool(self._sent), "the bytes are of other halves"

    def take(self, transaction_id: str) -> Sent | None:
        """Remove and return a half message, or None if it was dropped."""
        sent = self._sent.pop(transaction_id, None)
        if sent is not None:
            self._bytes -= sent.record_bytes + _OBJECTS_BYTES
            assert self._bytes >= 0, "more bytes went than came"
        return sent
