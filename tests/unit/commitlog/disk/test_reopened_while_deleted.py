"""Tests that a file is removed from the cache even if another thread opens it while it is being deleted.

The rule is stated in `commitlog.disk.descriptors`: a deleted or renamed file is removed from the cache. If
the old descriptor were used, data written later under the same name would go to the deleted file. The sync
would succeed, but the data would be lost. Workers delete files while the event loop and other workers read
and sync files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.disk.real_disk import RealDisk


@pytest.mark.parametrize(
    "use", [lambda disk: disk.read("f", 0, 9), lambda disk: disk.sync("f")], ids=["read", "sync"]
)
def test_what_is_written_after_a_deletion_is_in_the_file_of_that_name(
    use: Callable[[RealDisk], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, unlink = RealDisk(tmp_path), Path.unlink
    disk.write("f", 0, b"old")

    def meanwhile(path: Path, missing_ok: bool = False) -> None:
        use(disk)  # The calls of another thread may run between any two steps.
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", meanwhile)
    disk.delete("f")
    monkeypatch.undo()
    assert disk.read("f", 0, 9) == b""
    disk.write("f", 0, b"new")
    disk.sync("f")
    disk.close()
    assert (tmp_path / "f").read_bytes() == b"new"
