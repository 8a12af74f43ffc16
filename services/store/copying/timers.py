"""The timer files of a copy, which are those that its snapshot names.

Timer files are only appended to after the length in a snapshot, and are kept as long as one of the last two
snapshots names them. They are therefore opened immediately after the snapshot is read. If a file is missing,
a newer snapshot exists and the copy is restarted. If there is no newer snapshot, the missing file is reported
as damage.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NamedTuple

from commitlog.errors import StoreDamaged
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from services.store.read_only.reading import Overlay, StoreFiles
from services.store.read_only.timers import timer_files


class HeldFile(NamedTuple):
    """An open file, and the number of bytes to copy (None: all)."""

    descriptor: int
    length: int | None


def held_timers(files: StoreFiles, newest: Snapshot | None, stack: ExitStack) -> dict[str, HeldFile] | None:
    """Return the open timer files by path, or None if the broker has deleted one.

    Raises `StoreDamaged` if a file of the newest snapshot is missing.
    """
    held: dict[str, HeldFile] = {}
    for path, length in ({} if newest is None else timer_files(newest)).items():
        if files.size(path) < (length or 0):
            _check_newer(files, newest, path)
            return None
        held[path] = HeldFile(files.open(path), length)
        stack.callback(os.close, held[path].descriptor)
    return held


def _check_newer(files: StoreFiles, newest: Snapshot | None, path: str) -> None:
    found = snapshot.newest(Overlay(files))
    if found is not None and newest is not None and found.offset == newest.offset:
        raise StoreDamaged(
            f"{path} is missing or cut, and the newest snapshot counts on it. Restore it from a backup, or "
            "see what is damaged: tidewheel store verify"
        )
