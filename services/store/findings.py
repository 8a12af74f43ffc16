"""What a look at a store brings up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one part of a store that its operator should know.

    `part` is log, missing (segments), snapshot, queue, index, partition, names, ends, keep, half, timer,
    group, or start. `path` is relative to the store. The offsets are of the log (of the queue, for a queue;
    bytes of the file, for a partition, names and ends), -1 where they say nothing. What `is_damage` is not
    what was written; the rest is worth knowing, and no harm.
    """

    part: str
    path: str
    first_offset: int
    end_offset: int
    what: str
    is_damage: bool = True
