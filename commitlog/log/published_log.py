"""Reads the log of a store that another process may be writing to.

Readers neither lock nor write any files, so they can read the store of a running broker. They stop at the
published durable offset, which is never beyond the end of the log on disk. Without a published offset, as in
an Apache RocketMQ store, the log ends after the last intact record in the last nonempty segment.

A cluster node publishes the end of the records that it has copied and the cluster has accepted. Later records
in its files may not be accepted. No records are read until the node has published an offset.

Cost: opening a log lists one folder and reads eight bytes per segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from commitlog import layout, store_format
from commitlog.errors import NoRecords, NotAStore, StoreTooNew, StoreTooOld
from commitlog.log import imported
from commitlog.log.recovery import Damage
from commitlog.records import record

_NONE_OWN: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file of `segment_bytes` bytes.

    `next_offset` is the start of the next segment, if any. The last record in a file may extend beyond that
    offset (`commitlog.log.segments`). The next segment then begins with zeros (`is_overlapped`).
    """

    path: str
    first_offset: int
    segment_bytes: int
    next_offset: int | None = None
    is_overlapped: bool = False

    @property
    def end_offset(self) -> int:
        """Log offset where the segment ends.

        A segment closed with a blank ends at the start of the next segment.
        """
        end = self.first_offset + self.segment_bytes
        if self.next_offset is not None and end < self.next_offset and self._is_closed(self.next_offset):
            return self.next_offset
        return end if self.next_offset is None else min(end, self.next_offset)

    def _is_closed(self, next_offset: int) -> bool:
        blank_at = max(0, self.segment_bytes - record.BLANK_BYTES)
        with open(self.path, "rb") as file:
            file.seek(blank_at)
            return file.read(record.BLANK_BYTES) == record.blank(next_offset - self.first_offset - blank_at)


@dataclass(frozen=True, slots=True)
class StoreLog:
    """The log of a store at a point in time.

    If `ours` is true, Tidewheel wrote the log, and every record from `imported_until` on has a CRC.
    Otherwise, records may lack a CRC. `epoch` is the epoch of the last record, or a later one that begins at
    the end of the log. It is 0 if the store has never been in a cluster.
    """

    segments: tuple[Segment, ...]
    durable_offset: int | None
    ours: bool
    imported_until: int = 0
    epoch: int = 0

    @property
    def first_offset(self) -> int:
        """First offset of the log. Greater than 0 if retention has deleted segments."""
        return self.segments[0].first_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Offset where readers stop."""
        if self.durable_offset is not None:
            return self.durable_offset
        return self.segments[-1].end_offset if self.segments else 0


def open_log(store: Path, durable_offset: int | None = None) -> StoreLog:
    """Return the log of the store in the folder `store`.

    `durable_offset` replaces the published offset. Raise `NotAStore`, `StoreTooNew`, or `StoreTooOld` if the
    store cannot be opened, or `NoRecords` if it has no records yet.
    """
    ours = _check_format(store)
    folder = store / layout.COMMITLOG
    if not folder.is_dir() and not ours:
        raise NotAStore(f"{store} has no folder '{layout.COMMITLOG}'. Give --store the folder of a broker.")
    published = read_durable(store) if durable_offset is None else durable_offset
    imported_until = _read_imported(store) if ours else _NONE_OWN
    segments = _written_segments(folder, published or 0)
    log = StoreLog(segments, published, ours, imported_until, _read_epoch(store))
    if not log.segments or log.end_offset <= log.first_offset:
        raise NoRecords(_no_text(store))
    return log


def read_durable(store: Path) -> int | None:
    """Return the end of the readable log, or None if none is published.

    Return 0 for a node that has not published an offset, because its files may contain records that are not
    in the shared log.
    """
    path = store / layout.DURABLE
    told = layout.parse_readable(path.read_bytes()) if path.exists() else None
    return told or (0 if is_node(store) else None)


def is_node(store: Path) -> bool:
    """Return whether a store belongs to a cluster node."""
    return (store / layout.CLUSTER).exists()


def _no_text(store: Path) -> str:
    if is_node(store):
        return (
            f"{store} is a node's, which has told of no record that its cluster accepted: it has just "
            "started, or is not in step. Try again in some seconds, or give --store of another node."
        )
    return f"{store} holds no records yet. Send messages to its broker first."


def holes(log: StoreLog, first_offset: int = 0, end_offset: int | None = None) -> list[Damage]:
    """Return the offset ranges before the last segment that no segment covers."""
    last_offset = log.end_offset if end_offset is None else end_offset
    edges = [log.first_offset, *(segment.end_offset for segment in log.segments)]
    starts = [*(segment.first_offset for segment in log.segments), log.end_offset]
    found = [
        Damage(max(edge, first_offset), min(start, last_offset))
        for edge, start in zip(edges, starts, strict=True)
    ]
    return [hole for hole in found if hole.end_offset > hole.first_offset]


def _read_epoch(store: Path) -> int:
    path = store / layout.DURABLE
    return layout.parse_epoch(path.read_bytes()) if path.exists() else 0


def _read_imported(store: Path) -> int:
    path = store / imported.PATH
    return layout.parse_durable(path.read_bytes()) if path.exists() else 0


def _check_format(store: Path) -> bool:
    if not store.is_dir():
        raise NotAStore(f"{store} does not exist. Give --store the folder of a broker.")
    path = store / layout.FORMAT
    if not path.exists():
        return False
    try:
        store_format.parse(path.read_bytes())
    except (NotAStore, StoreTooNew, StoreTooOld) as error:
        raise type(error)(f"{store}: {error.detail}") from error
    return True


def _written_segments(folder: Path, published_offset: int) -> tuple[Segment, ...]:
    """Return the segments that contain records.

    A segment may begin with zeros before its records.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = [
        Segment(str(folder / name), int(name), (folder / name).stat().st_size)
        for name in names
        if name.isdigit() and len(name) == layout.OFFSET_DIGITS
    ]
    while found and found[-1].first_offset >= published_offset and _is_unwritten(found[-1]):
        found.pop()
    firsts: list[int | None] = [segment.first_offset for segment in found]
    known = [replace(one, next_offset=after) for one, after in zip(found, [*firsts[1:], None], strict=False)]
    for at, (before, one) in enumerate(pairwise(known), 1):
        if before.first_offset + before.segment_bytes > one.first_offset and _is_unwritten(one):
            known[at] = replace(one, is_overlapped=True)
    return tuple(known)


def _is_unwritten(segment: Segment) -> bool:
    with open(segment.path, "rb") as file:
        return not any(file.read(8))
