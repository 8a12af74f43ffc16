"""The interface of a shared log, implemented by a Kafka partition and by a PostgreSQL table.

    append_if       adds records if the head of the log equals the writer's head, or else adds nothing
    note            adds a record without an epoch, such as the holding of a node, at an unchanged head
    read            returns records from an offset on, in the same order for every reader
    bounds          returns the offset of the first remaining record, and the offset after the last record
    trim            deletes the records before an offset
    check_settings  reports settings under which accepted records could be lost

An engine keeps accepted records when any one of its machines is lost. The engine may answer late, twice or
never, and `Unknown` is raised if the outcome of a call is not known. Offsets are ascending, but may have gaps
if the engine is not dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """The epoch and holder of the next record, and the position after which the record must be written."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A record in the engine: its offset, its bytes, and the time of its append in ms since 1970."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """An engine that stores one shared log."""

    @property
    def is_dense(self) -> bool:
        """Return whether offsets are contiguous, so that a gap means a lost record."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append contiguous records if the head is `head`, and set the head to `following`.

        Return the offset of the last record, or None if the engine returns no offset or cannot confirm that
        the records are contiguous. Raise `Refused` if nothing was added, or `Unknown` if that is uncertain.
        An engine that cannot compare heads always appends, and the fold decides by the order in the log.
        """

    def note(self, stored: bytes) -> None:
        """Append a record without a change of the head.

        Raise `Refused` if nothing was added, or `Unknown` if the outcome is not known.
        """

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records from `offset` on, or from the first remaining record if that is later.

        Return at least one record if there is any. Raise `Unknown` if the engine cannot answer.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the first remaining offset, and the offset after the last record.

        Raise `Unknown` if the engine cannot answer.
        """

    def trim(self, offset: int) -> None:
        """Delete the records before `offset`. Raise `Unknown` if the engine cannot answer."""

    def check_settings(self) -> list[str]:
        """Return a sentence for each setting under which records may be lost, with a command to change it.

        The check does not wait for appends. Raise `Unknown` if the engine cannot answer.
        """
