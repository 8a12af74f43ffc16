"""What a shared log must be able to do: a partition of Kafka can, and so can a table of PostgreSQL.

    append_if   adds a record if the log's head is still what the writer says; else nothing
    note        adds a record that is nobody's right and changes no head: what a node holds
    read        records from an offset on, in order, the same for every reader
    bounds      the offset of the first record that is left, and the one behind the last
    trim        lets go of the records before an offset
    trouble     what it is set to that would lose what it has accepted

An engine keeps what it has accepted when any one of its machines is lost. It may answer late, twice or never;
`Unknown` is raised where the outcome is not known. Offsets ascend; an engine that is not dense may have gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sharedlog.fold import Position


class Head(NamedTuple):
    """Under which right the next record is written, and behind what."""

    epoch: int
    holder: bytes
    position: Position


class Stored(NamedTuple):
    """A record as the engine has it: its offset, its bytes, and when the engine took it, in ms since 1970."""

    offset: int
    stored: bytes
    appended_ms: int


class Engine(Protocol):
    """One shared log."""

    @property
    def is_dense(self) -> bool:
        """Whether offsets leave no gap: then a gap is a lost record."""

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append records, back to back, if the head is `head`, which then is `following`.

        Return the offset of the last record; None if the engine does not tell it, or not that the records lie
        back to back. Raise `Refused` if nothing was added, or `Unknown`. An engine that cannot compare adds
        them whatever the head is: what the order in its log makes of that, the fold tells.
        """

    def note(self, stored: bytes) -> None:
        """Append a record whoever leads; the head stays. Raise `Refused` (nothing was added) or `Unknown`."""

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records from `offset` on, or from the first that is left; at least one if there is any.

        Raise `Unknown`.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the first offset that is left, and the one behind the last record; raise `Unknown`."""

    def trim(self, offset: int) -> None:
        """Let go of the records before `offset`; raise `Unknown`."""

    def trouble(self) -> list[str]:
        """Return a sentence for each setting under which records may be lost, with the command that mends it.

        It waits for no append. Raise `Unknown`.
        """
