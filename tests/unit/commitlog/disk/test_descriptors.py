"""Tests which descriptors are closed to make room, and which files are removed from the cache."""

from __future__ import annotations

import os
from pathlib import Path

from commitlog.disk.descriptors import Descriptors
from commitlog.disk.real_disk import RealDisk


def made(folder: Path, open_max: int, synced: list[str]) -> Descriptors:
    def open_file(path: str, is_made: bool) -> int:
        return os.open(folder / path, os.O_RDWR | (os.O_CREAT if is_made else 0))

    return Descriptors(open_max, open_file, lambda descriptor, path: synced.append(path))


def used(files: Descriptors, path: str, *, is_written: bool = False) -> int:
    """Take a file, return it to the cache, and return its descriptor.

    The descriptor shows whether the file was opened again.
    """
    one = files.take(path, is_made=True)
    assert one is not None
    one.is_unsynced = one.is_unsynced or is_written
    files.give_back(one)
    return one.descriptor


def test_synced_files_are_closed_first_and_then_the_least_used(tmp_path: Path) -> None:
    synced: list[str] = []
    files = made(tmp_path, 3, synced)
    used(files, "written", is_written=True)
    used(files, "old")
    kept = files.take("new", is_made=True)
    assert kept is not None
    used(files, "more")  # The file `old` is synced and closed, because it has no users.
    assert synced == []
    used(files, "still more")  # The file `more` is closed.
    assert synced == []
    held = files.take("still more")
    assert held is not None
    used(files, "last")  # Only the file with unsynced writes is left to close.
    assert synced == ["written"]
    assert len(files) == 3
    files.give_back(kept)
    files.give_back(held)
    files.forget_all()
    assert len(files) == 0


def test_a_file_in_use_is_not_closed_however_short_room_is(tmp_path: Path) -> None:
    files = made(tmp_path, 1, [])
    held = files.take("held", is_made=True)
    assert held is not None
    used(files, "other")
    assert len(files) == 2
    files.forget("held")
    os.fstat(held.descriptor)
    files.give_back(held)
    assert len(files) == 1
    files.forget_all()


def test_a_folder_that_is_deleted_takes_its_own_files_only(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    for path in ("one/0/file", "one/1/file", "one more/0/file"):
        disk.write(path, 0, b"first")
        disk.sync(path)
    disk.delete("one")
    assert [disk.read(path, 0, 5) for path in ("one/0/file", "one more/0/file")] == [b"", b"first"]
    disk.write("one/0/file", 0, b"again")
    disk.sync("one/0/file")
    assert disk.read("one/0/file", 0, 5) == b"again"
    disk.close()
