"""Findings of store verification."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one part of a store.

    `part` is log, missing (segments), snapshot, queue, index, partition, names, ends, keep, half, timer,
    group, or start. `path` is relative to the store. The offsets refer to the log. For a queue they are queue
    offsets, and for partitions, names and ends they are byte positions in the file. The value -1 means not
    applicable. `is_damage` is set if data differs from what was written. Other findings are informational.
    """

    part: str
    path: str
    first_offset: int
    end_offset: int
    what: str
    is_damage: bool = True
