"""Records outside the log: kept records of deleted segments, and damaged bytes in quarantine."""

from __future__ import annotations

from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log import imported, keep
from commitlog.log.recovery import Damage
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore

QUARANTINE: Final = "quarantine"


class KeepFiles:
    """The kept records of deleted segments in the keep files (see `commitlog.log.keep`)."""

    def __init__(self, store: OpenStore) -> None:
        self.offsets: set[int] = set()
        self.findings: list[Finding] = []
        self._imported_until = imported.read(store.overlay())
        for name in filter(str.isdigit, store.files.list(layout.KEEP)):
            path = f"{layout.KEEP}/{name}"
            self._read(path, bytes(store.files.view(path)))

    def _read(self, path: str, stored: bytes) -> None:
        sound_bytes = 0
        for physical_offset, _, record_bytes in keep.records(stored, self._imported_until):
            self.offsets.add(physical_offset)
            sound_bytes += record_bytes
        if sound_bytes < len(stored):
            what = f"{len(stored) - sound_bytes} of its {len(stored)} bytes are not what was written"
            self.findings.append(Finding("keep", path, -1, -1, what))


def quarantine_path(damage: Damage) -> str:
    """Return the quarantine path for damaged bytes of the log."""
    digits = layout.OFFSET_DIGITS
    return f"{QUARANTINE}/{damage.first_offset:0{digits}d}-{damage.end_offset:0{digits}d}"


def quarantined(store: OpenStore, damage: Damage) -> bool:
    """Return whether exactly these damaged bytes are in quarantine, so that the damage is known."""
    path = quarantine_path(damage)
    return store.files.size(path) >= 0 and bytes(store.files.view(path)) == damaged_bytes(store, damage)


def set_aside(disk: Disk, path: str) -> None:
    """Move a file to quarantine durably, if it exists."""
    if disk.size(path) >= 0:
        copy = f"{QUARANTINE}/{path.replace('/', '-')}"
        put_aside(disk, copy, bytes(disk.view(path)))
        disk.delete(path)


def put_aside(disk: Disk, path: str, content: bytes) -> None:
    """Write a file in quarantine durably."""
    disk.delete(path)
    disk.write(path, 0, content)
    disk.sync(path)
    disk.sync_folder(QUARANTINE)


def damaged_bytes(store: OpenStore, damage: Damage) -> bytes:
    """Return the bytes of a damaged region. The result is shorter if a segment file is truncated."""
    parts = []
    at = damage.first_offset
    while at < damage.end_offset:
        path, position = store.segments.place(at)
        length = min(damage.end_offset, store.segments.end_of(at)) - at
        if length <= 0:
            break  # the offset is after the last segment
        parts.append(store.files.read(path, position, length) if store.files.size(path) >= 0 else b"")
        at += length
    return b"".join(parts)
