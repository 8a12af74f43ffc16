"""A file that another thread opens while it is deleted must be forgotten all the same.

Expected, as `commitlog.descriptors` has it: "A file that is deleted or renamed is forgotten: the next finds
none". Found: `RealDisk.delete` forgets the file before it unlinks it. A read or a sync by another thread in
between opens it again, and that descriptor stays: what is written later under this name goes to the deleted
file, is synced with success, and is lost. Files are deleted by a worker now while the loop and others read
and sync, and by a checkpoint while a rescue reads all files of timers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.real_disk import RealDisk


@pytest.mark.parametrize(
    "use", [lambda disk: disk.read("f", 0, 9), lambda disk: disk.sync("f")], ids=["read", "sync"]
)
def test_what_is_written_after_a_deletion_is_in_the_file_of_that_name(
    use: Callable[[RealDisk], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, unlink = RealDisk(tmp_path), Path.unlink
    disk.write("f", 0, b"old")

    def meanwhile(path: Path, missing_ok: bool = False) -> None:
        use(disk)  # of another thread, between any two steps
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", meanwhile)
    disk.delete("f")
    monkeypatch.undo()
    assert disk.read("f", 0, 9) == b""
    disk.write("f", 0, b"new")
    disk.sync("f")
    disk.close()
    assert (tmp_path / "f").read_bytes() == b"new"
