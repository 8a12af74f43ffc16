"""The files of timers that a copy of a store needs: those that its snapshot names.

A file changes only behind the length that a snapshot names, and stays while one of the last two snapshots
names it. So it is held open right after its snapshot was read; where it is gone by then, a newer snapshot has
come, and the copy begins anew. One that is gone without that is damage, and is told.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NamedTuple

from commitlog import snapshot
from commitlog.errors import StoreDamaged
from commitlog.snapshot import Snapshot
from services.store.reading import Overlay, StoreFiles
from services.store.timers import timer_files


class HeldFile(NamedTuple):
    """An open file, and how much of it is to be copied (None: all)."""

    descriptor: int
    length: int | None


def held_timers(files: StoreFiles, newest: Snapshot | None, stack: ExitStack) -> dict[str, HeldFile] | None:
    """Return the files of timers by path, held open; None if the broker has deleted one since.

    Raise `StoreDamaged` if one is missing though the newest snapshot names it.
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
