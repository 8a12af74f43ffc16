"""The real disk does what the in-memory disk promises, and the lock keeps a second broker out."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from commitlog.disk import Disk
from commitlog.errors import StoreError, StoreLocked
from commitlog.lock import StoreLock
from commitlog.memory_disk import MemoryDisk
from commitlog.real_disk import RealDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else MemoryDisk()


def test_files_behave_the_same_on_both_disks(disk: Disk) -> None:
    assert disk.size("a/b") == -1
    assert disk.list("a") == []
    disk.allocate("a/b", 100)
    disk.write("a/b", 10, b"hello")
    disk.sync("a/b")
    assert disk.size("a/b") == 100
    assert disk.read("a/b", 8, 8) == b"\0\0hello\0"
    assert disk.read("a/b", 98, 8) == b"\0\0"
    assert bytes(disk.view("a/b"))[10:15] == b"hello"
    disk.truncate("a/b", 12)
    disk.allocate("a/b", 20)
    assert disk.read("a/b", 10, 10) == b"he" + bytes(8)
    disk.write("a/c/d", 0, b"x")
    assert disk.list("a") == ["b", "c"]
    assert disk.list("") == ["a"]
    disk.delete("a")
    disk.delete("a")
    assert disk.list("a") == []
    assert disk.size("a/c/d") == -1


def test_a_second_process_is_told_who_holds_the_store(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pathlib import Path\n"
         "from commitlog.lock import StoreLock\n"
         "StoreLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()",
         str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StoreLocked, match=f"process {holder.pid}"):
        StoreLock(tmp_path).acquire()
    holder.communicate(b"")
    lock = StoreLock(tmp_path)
    lock.acquire()
    lock.release()


HOLD = """
import sys
from pathlib import Path
from commitlog.lock import StoreLock
StoreLock(Path(sys.argv[1])).acquire(); print("held", flush=True); sys.stdin.read()
"""


def test_who_deletes_the_lock_file_gets_no_second_broker_into_the_store(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    (tmp_path / "lock").unlink()
    for _ in range(2):  # the second time on the file that the first has made
        with pytest.raises(StoreLocked, match="held by another process"):
            StoreLock(tmp_path).acquire()
    holder.communicate(b"")
    lock = StoreLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_process_that_closes_the_lock_file_elsewhere_keeps_the_store(tmp_path: Path) -> None:
    """A POSIX lock goes with any descriptor of the file that its process closes."""
    lock = StoreLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock").read_text()
    refused = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True)
    assert f"held by process {os.getpid()}" in refused.stderr
    lock.release()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        StoreLock(tmp_path / "store").acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_made_in_a_store_is_for_its_owner_and_the_owners_group(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = StoreLock(tmp_path / "store")
        lock.acquire()
        disk = RealDisk(tmp_path / "store")
        disk.write("consumequeue/t/0/0", 0, b"x")
        disk.allocate("reserve", 10)
        disk.close()
        lock.release()
    finally:
        os.umask(before)
    made = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    modes = {one: one.stat().st_mode & 0o777 for one in made}
    assert len(made) == 7
    assert {mode for one, mode in modes.items() if one.is_dir()} == {0o750}
    assert {mode for one, mode in modes.items() if one.is_file()} == {0o640}


def test_a_path_that_is_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file cannot be opened"):
        StoreLock(tmp_path / "file").acquire()


def test_blocks_that_are_reserved_for_root_count_neither_as_used_nor_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `df` reckons: the used share is used / (used + available)."""
    system = types.SimpleNamespace(f_frsize=10, f_blocks=1_000, f_bfree=800, f_bavail=200)
    monkeypatch.setattr(os, "statvfs", lambda path: system)
    free_bytes, total_bytes = RealDisk(tmp_path).usage()
    assert (free_bytes, total_bytes) == (2_000, 4_000)


def test_only_what_writes_makes_a_file(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    assert disk.read("commitlog/0", 0, 8) == b""
    assert disk.read_many("commitlog/0", [(0, 8)]) == b""
    assert bytes(disk.view("commitlog/0")) == b""
    disk.will_need("commitlog/0")
    disk.sync("commitlog/0")
    assert list(tmp_path.iterdir()) == []
    disk.close()


def test_who_reads_a_file_that_is_deleted_meanwhile_reads_no_other_one(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.write("deleted", 0, b"deleted")
    number = disk._descriptor("deleted")  # as a reader in another thread has it, on its way to the read
    disk.delete("deleted")
    disk.write("other", 0, b"other")
    assert os.pread(number, 8, 0) == b""
    disk.close()
