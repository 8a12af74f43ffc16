"""The interface of a shared log, implemented by a Kafka partition and by a PostgreSQL table.

    append_if   adds records if the head of the log is still the writer's; else adds nothing
    note        adds a record that belongs to no epoch and leaves the head unchanged: the holding of a node
    read        returns records from an offset on, in the same order for every reader
    bounds      returns the offset of the first record left, and the offset after the last
    trim        deletes the records before an offset
    trouble     reports settings under which accepted records would be lost

An engine keeps accepted records when any one of its machines is lost. It may answer late, twice or never;
`Unknown` is raised if the outcome is not known. Offsets ascend; an engine that is not dense may have gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """The epoch and holder under which the next record is written, and the position it must follow."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A record in the engine: its offset, its bytes, and the time of its append, in ms since 1970."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """One shared log."""

    @property
    def is_dense(self) -> bool:
        """Whether offsets are contiguous: then a gap is a lost record."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append records, back to back, if the head is `head`, and set the head to `following`.

        Return the offset of the last record; None if the engine does not return it, or cannot confirm that
        the records are contiguous. Raise `Refused` if nothing was added, or `Unknown`. An engine that cannot
        compare heads always appends; the fold then decides by the order in the log.
        """

    def note(self, stored: bytes) -> None:
        """Append a record; the head stays as it is. Raise `Refused` (nothing was added) or `Unknown`."""

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records from `offset` on, or from the first one left; at least one if there is any.

        Raise `Unknown`.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the first offset left, and the offset after the last record; raise `Unknown`."""

    def trim(self, offset: int) -> None:
        """Delete the records before `offset`; raise `Unknown`."""

    def trouble(self) -> list[str]:
        """Return a sentence for each setting under which records may be lost, with the command that fixes it.

        The check does not wait for appends. Raise `Unknown`.
        """
