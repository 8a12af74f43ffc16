"""The interface of a shared log engine.

An engine is either a Kafka partition (`sharedlog.kafka`) or a PostgreSQL table (`sharedlog.postgres`).

    append_if         Appends records and updates the head of the log if it equals the expected head.
    append_unchecked  Appends a record that has no epoch, such as a HOLD record, without comparing or
                      changing the head.
    read              Returns records in offset order. The order is the same for all readers.
    bounds            Returns the log start offset and the log end offset.
    trim              Deletes all records before an offset.
    check_settings    Reports settings that can cause the loss of accepted records.

An engine must not lose an accepted record when one of its machines fails. A call raises `EngineUnavailable`
if its result is unknown, for example after a timeout. Offsets always increase, but may have gaps unless the
engine is dense (`is_dense`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """The head of a shared log: the newest epoch, its holder, and the start position of the next record."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A record as stored: the offset, the bytes, and the append time in milliseconds since the Unix epoch."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """An engine that stores one shared log."""

    @property
    def is_dense(self) -> bool:
        """Return whether offsets are contiguous. In a dense engine, a gap indicates a lost record."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """If the current head equals `head`, append records contiguously and set the head to `following`.

        Return the offset of the last record, or None if the offset is unknown or the records may not be
        contiguous. Raise `EngineRefused` if no record was appended, or `EngineUnavailable` if the result is
        unknown. An engine that cannot compare heads appends unconditionally. Readers then determine from the
        record order which records are valid.
        """

    def append_unchecked(self, stored: bytes) -> None:
        """Append a record without comparing or changing the head.

        Raise `EngineRefused` if no record was appended, or `EngineUnavailable` if the result is unknown.
        """

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records in offset order, beginning with the first record at or after `offset`.

        Return at least one record if the log contains a record at or after `offset`. Raise
        `EngineUnavailable` if the engine does not respond.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the log start offset and the log end offset.

        The log end offset is the offset after the last record. Raise `EngineUnavailable` if the engine does
        not respond.
        """

    def trim(self, offset: int) -> None:
        """Delete all records before `offset`. Raise `EngineUnavailable` if the engine does not respond."""

    def check_settings(self) -> list[str]:
        """Return a message for each setting that can cause the loss of accepted records.

        Each message includes the command that corrects the setting. The check does not wait for appends in
        progress. Raise `EngineUnavailable` if the engine does not respond.
        """
