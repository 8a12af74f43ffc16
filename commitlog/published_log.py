"""The log of a store as another process reads it: which files, up to which byte.

Nothing is locked and nothing is written, so a running broker's store can be read: the reader stops at
the published durable offset, which is never ahead of what is on disk. A store without one (Apache
RocketMQ's own) ends at the last sound record of its last segment that is not empty.

Of a cluster's node that is what the cluster has accepted and the node has: it tells as it takes that in. What
else may lie in its files nobody has accepted, so there is nothing to be read before the node has told.

Cost: one listing, and eight bytes of each segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from commitlog import imported, layout, record, store_format
from commitlog.errors import NoRecords, NotAStore, StoreTooNew, StoreTooOld
from commitlog.recovery import Damage

_NONE_OWN: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log; it is `segment_bytes` long.

    `next_offset` is where the next one begins, if there is one. A file may be longer than up to there, if its
    last record is (`commitlog.segments`), and the next one then begins with zeros (`is_overlapped`).
    """

    path: str
    first_offset: int
    segment_bytes: int
    next_offset: int | None = None
    is_overlapped: bool = False

    @property
    def end_offset(self) -> int:
        """The log offset up to which it covers the log; a blank at the file's end may reach the next one."""
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
    """The log of one store at one moment.

    `ours`: written by Tidewheel, so every record from `imported_until` on carries a CRC.
    Of a log that is not ours no record need have one. `epoch`: that of its end, or one that begins right
    there; 0 of a store that was always alone.
    """

    segments: tuple[Segment, ...]
    durable_offset: int | None
    ours: bool
    imported_until: int = 0
    epoch: int = 0

    @property
    def first_offset(self) -> int:
        """Where the kept log starts; above 0 once retention has deleted segments."""
        return self.segments[0].first_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Where reading stops."""
        if self.durable_offset is not None:
            return self.durable_offset
        return self.segments[-1].end_offset if self.segments else 0


def open_log(store: Path, durable_offset: int | None = None) -> StoreLog:
    """Return the log under `store`; `durable_offset` overrides the published one (to read two stores alike).

    Raise `NotAStore`, `StoreTooNew`, `StoreTooOld`, or `NoRecords` if it holds none yet.
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
    """Return up to where may be read; None where nothing says so, or nothing that can be read.

    For a node that is 0: what its files hold beyond what it has told may be another history.
    """
    path = store / layout.DURABLE
    told = layout.parse_readable(path.read_bytes()) if path.exists() else None
    return told or (0 if is_node(store) else None)


def is_node(store: Path) -> bool:
    """Return whether a store is that of a node of a cluster."""
    return (store / layout.CLUSTER).exists()


def _no_text(store: Path) -> str:
    if is_node(store):
        return (
            f"{store} is a node's, which has told of no record that its cluster accepted: it has just "
            "started, or is not in step. Try again in some seconds, or give --store of another node."
        )
    return f"{store} holds no records yet. Send messages to its broker first."


def holes(log: StoreLog, first_offset: int = 0, end_offset: int | None = None) -> list[Damage]:
    """Return the ranges between two offsets that no segment covers although the log goes on behind them."""
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
    """Return the segments that hold something; one that begins with zeros does if the log goes on there."""
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
