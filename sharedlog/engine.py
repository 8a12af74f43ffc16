"""The interface of a shared log engine.

There are adapters for a Kafka partition and for a PostgreSQL table.

    append_if         Appends records if the head of the log equals the writer's head, and otherwise does
                      nothing.
    append_unchecked  Appends a record without an epoch, such as a HOLD, and does not change the head.
    read              Returns records starting at an offset, in the same order for every reader.
    bounds            Returns the offset of the first remaining record and the offset after the last record.
    trim              Deletes all records before an offset.
    check_settings    Reports settings that could cause accepted records to be lost.

An engine must not lose an accepted record when one of its machines fails. A call raises `EngineUnavailable`
if its result is unknown, for example after a timeout. Offsets always increase. Offsets may have gaps unless
the engine is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """A shared log's epoch and holder, and the position where the next record must begin."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A stored record: offset, bytes, and append time in milliseconds since the Unix epoch."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """Stores a single shared log."""

    @property
    def is_dense(self) -> bool:
        """Whether offsets are contiguous, so that a gap means a lost record."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """If the head equals `head`, append contiguous records and set the head to `following`.

        Return the offset of the last record, or None if the offset is unknown or the records may not be
        contiguous. Raise `EngineRefused` if no record was appended, or `EngineUnavailable` if the result is
        unknown. An engine that cannot compare heads always appends. Each reader then determines from the
        record order which records are valid.
        """

    def append_unchecked(self, stored: bytes) -> None:
        """Append a record without changing the head.

        Raise `EngineRefused` if no record was appended, or `EngineUnavailable` if the result is unknown.
        """

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records starting at `offset`, or at the first remaining record if its offset is higher.

        Return at least one record if one exists at or after `offset`. Raise `EngineUnavailable` if the engine
        does not respond.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the first remaining offset and the offset after the last record.

        Raise `EngineUnavailable` if the engine does not respond.
        """

    def trim(self, offset: int) -> None:
        """Delete all records before `offset`. Raise `EngineUnavailable` if the engine does not respond."""

    def check_settings(self) -> list[str]:
        """Return a message for each setting that could cause record loss.

        Each message names the command that fixes the setting. The check does not wait for appends in
        progress. Raise `EngineUnavailable` if the engine does not respond.
        """
