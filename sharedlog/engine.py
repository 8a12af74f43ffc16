"""Defines the interface of a shared log engine.

The interface is implemented by adapters for a Kafka partition and for a PostgreSQL table.

    append_if       Appends records if the head of the log equals the writer's head, and otherwise does
                    nothing.
    note            Appends a record without an epoch, such as a node's holding, and does not change the head.
    read            Returns records starting at an offset, in the same order for every reader.
    bounds          Returns the offset of the first remaining record and the offset after the last record.
    trim            Deletes all records before an offset.
    check_settings  Reports settings that could cause accepted records to be lost.

An engine must not lose any accepted record if one of its machines fails. A call raises `Unknown` if its
result is unknown, for example because the engine does not respond in time. Offsets always increase, but there
may be gaps between offsets unless the engine is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """The epoch and holder of a shared log, and the position at which the next record must begin."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A stored record: its offset, its bytes, and the time of its append in ms since 1970."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """An engine that stores a single shared log."""

    @property
    def is_dense(self) -> bool:
        """True if offsets are contiguous, so that a gap between two offsets means that a record was lost."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """If the head equals `head`, append records at contiguous offsets, and set the head to `following`.

        Return the offset of the last record, or None if the engine does not return an offset or cannot
        confirm that the offsets are contiguous. Raise `Refused` if no record was appended, or `Unknown` if
        the result is unknown. An engine that cannot compare heads always appends the records. In this case,
        each reader determines from the order of the records which of them are valid.
        """

    def note(self, stored: bytes) -> None:
        """Append a record without changing the head.

        Raise `Refused` if the record was not appended, or `Unknown` if the result is unknown.
        """

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records starting at `offset`, or at the first remaining record if its offset is higher.

        The result contains at least one record, unless the log contains no record at or after `offset`. Raise
        `Unknown` if the engine does not respond.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the first remaining record and the offset after the last record.

        Raise `Unknown` if the engine does not respond.
        """

    def trim(self, offset: int) -> None:
        """Delete all records before `offset`. Raise `Unknown` if the engine does not respond."""

    def check_settings(self) -> list[str]:
        """Return a message for each setting that could cause a loss of records.

        Each message includes a command that changes the setting. The check does not wait for appends in
        progress. Raise `Unknown` if the engine does not respond.
        """
