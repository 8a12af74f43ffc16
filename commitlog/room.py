"""Chooses the segment size of a new store based on free disk space.

    free space   segment    used at once
    >= 256 GiB     1 GiB       2 GiB
    80 GiB       256 MiB     512 MiB       a segment is a power of two, at most 1/256 of the free space
    10 GiB        32 MiB      64 MiB
    < 4 GiB        8 MiB      16 MiB
    < 32 MiB     refused (`NoRoom`), because the store would refuse every message

There must also be enough free space for a reserve file of one segment's size. The segment size is chosen when
the store is created. `--segment-bytes` overrides it.
"""

from __future__ import annotations

from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import NoRoom
from commitlog.limits import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN

PART_OF_FREE: Final = 256
SEGMENTS_FREE_MIN: Final = 4
"""Minimum free space in segments: for the log, the reserve, the next segment, and other files."""
MIB: Final = 1 << 20


def segment_bytes_for(free_bytes: int) -> int:
    """Return the segment size in bytes for a new store with this much free space."""
    chosen = SEGMENT_BYTES_DEFAULT
    while chosen > SEGMENT_BYTES_MIN and chosen * PART_OF_FREE > free_bytes:
        chosen //= 2
    return chosen


def choose_segment_bytes(disk: Disk, wanted: int | None) -> int:
    """Return the segment size in bytes for a new store.

    This is `wanted` if given, and otherwise a size suitable for the volume. Raise `NoRoom` if the volume does
    not have enough free space.
    """
    free_bytes, _ = disk.usage()
    segment_bytes = wanted or segment_bytes_for(free_bytes)
    if not disk.list(layout.COMMITLOG) and free_bytes < SEGMENTS_FREE_MIN * segment_bytes:
        raise NoRoom(
            f"A new store with segments of {segment_bytes // MIB} MiB needs "
            f"{SEGMENTS_FREE_MIN * segment_bytes // MIB} MiB, {free_bytes // MIB} MiB are free. "
            f"{_advice(free_bytes)}"
        )
    return segment_bytes


def _advice(free_bytes: int) -> str:
    fitting = segment_bytes_for(free_bytes)
    if SEGMENTS_FREE_MIN * fitting <= free_bytes:
        return f"Give --segment-bytes {fitting}, or leave it out; or choose another volume with --store."
    return "Free some space, or choose another volume with --store."
