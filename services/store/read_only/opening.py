"""Opening of a store for reading, up to its durable offset. Nothing is written and no lock is taken.

A running broker publishes its durable offset. Later records may still be incomplete. A snapshot contains only
durable data, so the newest snapshot also determines the durable offset. A cluster node also publishes the
offset up to which it has applied accepted records (`accepted_offset`). A crash may lose the part that is not
synced, which the next start reads again from the shared log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from commitlog import layout, store_format
from commitlog.errors import NotAStore, StoreTooNew, StoreTooOld
from commitlog.limits import SEGMENT_BYTES_DEFAULT
from commitlog.log.recovery import LogScan
from commitlog.log.segments import Segments
from commitlog.snapshots import snapshot
from commitlog.store_format import Format, derived_segment_bytes
from services.store.read_only.reading import Overlay, Reader, StoreFiles


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store at one point in time: its files, and the durable offset at which reading stops."""

    files: Reader
    durable_offset: int
    segment_bytes: int
    segment_offsets: list[int]
    snapshot_offsets: list[int]
    unsound: dict[str, str] = field(default_factory=dict)
    """Problems of small files, by path. The next start rewrites these files."""
    accepted_offset: int | None = None
    """The offset up to which a node has applied accepted records, synced or not.

    None if the store does not belong to a node.
    """
    version: int = store_format.VERSION
    """Version of the store format (`commitlog.store_format`)."""

    @property
    def segments(self) -> Segments:
        """The mapping of log offsets to segments."""
        return Segments(self.segment_offsets, self.segment_bytes)

    @property
    def first_offset(self) -> int:
        """The first retained log offset. It is above 0 after retention has deleted segments."""
        return self.segment_offsets[0] if self.segment_offsets else self.durable_offset

    def overlay(self, until: int | None = None) -> Overlay:
        """Return an overlay of the store in which the log ends durably at `until`, which must be the start of
        a record.
        """
        end = self.durable_offset if until is None else until
        disk = Overlay(self.files)
        layout.reset_durable(disk, end)
        for offset in self.snapshot_offsets:
            if offset > end:
                disk.delete(snapshot.path_of(offset))
        return disk

    def scan(self, start_at: int = 0, until: int | None = None) -> LogScan:
        """Return a scan of the log from `start_at` to `until` or to the durable offset."""
        end = self.durable_offset if until is None else until
        return LogScan(self.overlay(end), self.segment_bytes, start_at, end)


def open_store(root: Path) -> OpenStore:
    """Return the store in folder `root`; raise a `StoreError` with advice."""
    if root.exists() and not root.is_dir():
        raise NotAStore(f"{root} is a file. Give --store the folder of a broker.")
    if not root.exists():
        raise NotAStore(f"{root} does not exist. Give --store the folder of a broker.")
    return look_at(StoreFiles(root), str(root))


def look_at(files: Reader, name: str) -> OpenStore:
    """Return a store from its files. `name` is used in error messages."""
    disk = Overlay(files)
    found = _format_of(disk, name)
    snapshot_offsets = snapshot.offsets(disk)
    segment_offsets = layout.segment_offsets(disk)
    segment_bytes = found.segment_bytes or derived_segment_bytes(disk, SEGMENT_BYTES_DEFAULT)
    published = layout.published(disk)
    durable_offset = max(published.offset, *snapshot_offsets, 0)
    scan = LogScan(disk, segment_bytes, max(snapshot_offsets, default=0), durable_offset)
    problems = {
        layout.FORMAT: found.problem,
        layout.DURABLE: scan.unsound and (published.problem or "it is missing"),
    }
    if scan.unsound:
        durable_offset = _proven_offset(disk, segment_bytes, durable_offset)
    return OpenStore(
        files, durable_offset, segment_bytes, segment_offsets, snapshot_offsets,
        {path: problem for path, problem in problems.items() if problem},
        max(published.accepted_offset, durable_offset) if disk.size(layout.CLUSTER) >= 0 else None,
        found.version,
    )  # fmt: skip


def _proven_offset(disk: Overlay, segment_bytes: int, start_at: int) -> int:
    """Return the end of the log without a published offset, as the next start will determine it."""
    scan = LogScan(disk, segment_bytes, start_at)
    for _ in scan:
        pass
    return scan.end_offset


def _format_of(disk: Overlay, name: str) -> Format:
    """Return the format of the store. Raises `NotAStore`, `StoreTooNew` or `StoreTooOld`."""
    try:
        found = store_format.read(disk)
    except (NotAStore, StoreTooNew, StoreTooOld) as error:
        if disk.size(layout.FORMAT) <= 0:
            raise _not_ours(disk, name) from error
        raise type(error)(f"{name}: {error.detail}") from error
    if found is None:
        raise _not_ours(disk, name)
    return found


def _not_ours(files: Overlay, name: str) -> NotAStore:
    if layout.COMMITLOG in files.list(""):
        return NotAStore(
            f"{name} has a commitlog but no file '{layout.FORMAT}': it was written by Apache RocketMQ. "
            f"Take it over with: tidewheel store import {name} --store NEW"
        )
    return NotAStore(f"{name} holds no commitlog. Give --store the folder of a broker.")
