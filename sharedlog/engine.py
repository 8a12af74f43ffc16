"""The interface of a shared log, with implementations for a Kafka partition and a PostgreSQL table.

    append_if       appends records if the head of the log equals the writer's head, and otherwise nothing
    note            appends a record without an epoch, such as a node's holding, and keeps the head
    read            returns records starting at an offset, in the same order for every reader
    bounds          returns the first remaining offset, and the offset that follows the last record
    trim            deletes the records before an offset
    check_settings  reports settings under which accepted records could be lost

An engine loses no accepted record if one of its machines fails. A call raises `Unknown` if its outcome is
unknown, for example because the engine does not respond in time. Offsets increase, but may have gaps unless
the engine is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """The epoch and holder of the next record, and the position that the record must follow."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A stored record with its offset, its bytes, and the time of its append in ms since 1970."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """An engine that stores one shared log."""

    @property
    def is_dense(self) -> bool:
        """Return whether offsets are contiguous. In a dense engine, a gap shows that a record was lost."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append records at contiguous offsets if the head equals `head`, and set the head to `following`.

        Return the offset of the last record, or None if the engine returns no offset or cannot confirm that
        the records are contiguous. Raise `Refused` if no record was appended, or `Unknown` if the outcome is
        unknown. An engine that cannot compare heads appends the records in any case, and each fold determines
        the valid records from their order in the log.
        """

    def note(self, stored: bytes) -> None:
        """Append a record without changing the head.

        Raise `Refused` if the record was not appended, or `Unknown` if the outcome is unknown.
        """

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records starting at `offset`, or at the first remaining record if its offset is higher.

        Return at least one record if any exists. Raise `Unknown` if the engine cannot answer.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the first remaining offset, and the offset that follows the last record.

        Raise `Unknown` if the engine cannot answer.
        """

    def trim(self, offset: int) -> None:
        """Delete the records before `offset`. Raise `Unknown` if the engine cannot answer."""

    def check_settings(self) -> list[str]:
        """Return a message for each setting that could cause a loss of records, with a command to change it.

        The check does not wait for appends in progress. Raise `Unknown` if the engine cannot answer.
        """
