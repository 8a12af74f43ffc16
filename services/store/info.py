"""`store info`: the content of a store, without locking or changing it.

Cost: the newest snapshot and the log after it are read. Other values are file sizes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commitlog.log import imported
from commitlog.snapshots import snapshot
from services.store.read_only.opening import OpenStore, open_store
from services.store.read_only.state import GroupState, State, TopicState, fold

_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot, and whether it is sound."""

    offset: int
    file_bytes: int
    is_sound: bool


@dataclass(frozen=True, slots=True)
class PartSize:
    """The files of one part of a store: number, total length, and disk usage."""

    name: str
    file_count: int
    file_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class TopicSize:
    """A topic and the number of messages ever stored in its queues."""

    topic: TopicState
    message_count: int


@dataclass(frozen=True, slots=True)
class Info:
    """A store at one point in time. Offsets refer to the log, and times are in milliseconds since 1970.

    `accepted_offset` is the offset up to which a node has applied the records accepted by its cluster. It is
    None if the store does not belong to a node. `timer_names` and `timer_ends` count all stored facts,
    including superseded ones.
    """

    path: str
    format: int
    segment_bytes: int
    segment_count: int
    first_offset: int
    durable_offset: int
    accepted_offset: int | None
    epoch: int
    imported_until: int
    snapshots: list[SnapshotFile]
    topics: list[TopicSize]
    groups: list[GroupState]
    open_halves: int
    expired_halves: int
    pending_timers: int
    next_due_ms: int | None
    timer_names: int
    timer_ends: int
    parts: list[PartSize]

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        topics = [{**asdict(one.topic), "message_count": one.message_count} for one in self.topics]
        groups = [{**asdict(one), "lag": one.lag} for one in self.groups]
        return {**asdict(self), "topics": topics, "groups": groups}


def info(root: Path, now_ms: int) -> Info:
    """Return information about the store in folder `root`; raise a `StoreError` if it is not a store or
    cannot be read.
    """
    store = open_store(root)
    state = fold(store, now_ms)
    counts = _message_counts(state)
    return Info(
        path=str(root),
        format=store.version,
        segment_bytes=store.segment_bytes,
        segment_count=len(store.segment_offsets),
        first_offset=store.first_offset,
        durable_offset=store.durable_offset,
        accepted_offset=store.accepted_offset,
        epoch=state.epoch,
        imported_until=imported.read(store.overlay()),
        snapshots=list(_snapshots(store)),
        topics=[TopicSize(topic, counts[topic.name]) for topic in state.topics],
        groups=state.groups,
        open_halves=len(state.halves_in("OPEN")),
        expired_halves=len(state.halves_in("EXPIRED")),
        pending_timers=state.timers.counted_count,
        next_due_ms=state.timers.next_due_ms(),
        timer_names=state.timers.names.fact_count,
        timer_ends=state.timers.ends.fact_count,
        parts=list(_parts(root)),
    )


def _snapshots(store: OpenStore) -> Iterator[SnapshotFile]:
    disk = store.overlay()
    for offset in store.snapshot_offsets:
        sound = snapshot.read(disk, offset) is not None
        yield SnapshotFile(offset, disk.size(snapshot.path_of(offset)), sound)


def _message_counts(state: State) -> Counter[str]:
    counts = Counter[str]()
    for (topic, _), offset in state.next_offsets.items():
        counts[topic] += offset
    return counts


def _parts(root: Path) -> Iterator[PartSize]:
    for name in sorted(os.listdir(root)):
        sizes = [size for path in _files(root / name) if (size := _size(path)) is not None]
        yield PartSize(name, len(sizes), sum(one for one, _ in sizes), sum(one for _, one in sizes))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _size(path: Path) -> tuple[int, int] | None:
    """Return the length and disk usage of a file, or None if a running broker has just deleted it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_blocks * _BLOCK_BYTES
