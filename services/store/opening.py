"""Is this folder a store, and how far may it be read? Nothing is written and no lock is taken.

A live broker publishes its durable offset; what lies behind it may still be under way. A snapshot is only
written of what is durable, so the newest one counts as published too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commitlog import layout, snapshot
from commitlog.errors import NotAStore, StoreError, StoreTooNew
from commitlog.limits import SEGMENT_BYTES_DEFAULT
from commitlog.recovery import LogScan
from services.store.reading import Overlay, Reader, StoreFiles


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store at one moment: its files, and the published durable offset at which reading stops."""

    files: Reader
    durable_offset: int
    segment_bytes: int
    segment_offsets: list[int]
    snapshot_offsets: list[int]

    @property
    def first_offset(self) -> int:
        """Where the kept log starts; above 0 once retention has deleted segments."""
        return self.segment_offsets[0] if self.segment_offsets else self.durable_offset

    def overlay(self, until: int | None = None) -> Overlay:
        """A disk over the store's files on which the log ends at `until` (a record's start), durably."""
        end = self.durable_offset if until is None else until
        disk = Overlay(self.files)
        layout.reset_durable(disk, end)
        for offset in self.snapshot_offsets:
            if offset > end:
                disk.delete(snapshot.path_of(offset))
        return disk

    def scan(self, start_at: int = 0, until: int | None = None) -> LogScan:
        """A pass over the log from `start_at` up to `until`, or to the durable offset."""
        end = self.durable_offset if until is None else until
        return LogScan(self.overlay(end), SEGMENT_BYTES_DEFAULT, start_at, end)


def open_store(root: Path) -> OpenStore:
    """The store in folder `root`; raises a `StoreError` that says what is wrong and what to do."""
    if root.exists() and not root.is_dir():
        raise NotAStore(f"{root} is a file. Give --store the folder of a broker.")
    if not root.exists():
        raise NotAStore(f"{root} does not exist. Give --store the folder of a broker.")
    return look_at(StoreFiles(root), str(root))


def look_at(files: Reader, name: str) -> OpenStore:
    """The store whose files these are; `name` is what errors call it."""
    check_format(files, name)
    snapshot_offsets = snapshot.offsets(Overlay(files))
    segment_offsets = layout.segment_offsets(Overlay(files))
    durable_offset = max(layout.read_durable(Overlay(files)), *snapshot_offsets, 0)
    scan = LogScan(Overlay(files), SEGMENT_BYTES_DEFAULT, max(snapshot_offsets, default=0), durable_offset)
    return OpenStore(files, durable_offset, scan.segment_bytes, segment_offsets, snapshot_offsets)


def check_format(files: Reader, name: str) -> None:
    """Raises `NotAStore` or `StoreTooNew` unless the store is of a version that this one reads."""
    if files.size(layout.FORMAT) < 0:
        raise _not_ours(files, name)
    version = files.read(layout.FORMAT, 0, 64).decode(errors="replace").strip()
    if not version.isdigit():
        raise StoreError(
            f"{name}/{layout.FORMAT} holds {version!r}, not a version. If this version of tidewheel wrote "
            f"the store, write {layout.FORMAT_VERSION} into that file."
        )
    if int(version) > layout.FORMAT_VERSION:
        raise StoreTooNew(
            f"{name} has format {version}, this version reads up to {layout.FORMAT_VERSION}. "
            "Upgrade tidewheel; nothing was changed."
        )


def _not_ours(files: Reader, name: str) -> NotAStore:
    if layout.COMMITLOG in files.list(""):
        return NotAStore(
            f"{name} has a commitlog but no file '{layout.FORMAT}': it was written by Apache RocketMQ. "
            f"Take it over with: tidewheel store import {name} --store NEW"
        )
    return NotAStore(f"{name} holds no commitlog. Give --store the folder of a broker.")
