"""Tests that the real disk behaves like the in-memory disk, and that the lock excludes a second broker."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitlog.disk.descriptors import OpenFile
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.disk.real_disk import RealDisk
from commitlog.disk.view import WINDOW_BYTES, View, whole
from commitlog.errors import StoreError, StoreLocked
from commitlog.lock import StoreLock
from tests.memory_disk import MemoryDisk


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


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve space for a file")
def test_what_is_allocated_has_its_space_on_disk(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.allocate("segment", 1 << 20)
    assert (tmp_path / "segment").stat().st_blocks * 512 >= 1 << 20


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
    for _ in range(2):  # The second iteration uses the file that was created by the first.
        with pytest.raises(StoreLocked, match="held by another process"):
            StoreLock(tmp_path).acquire()
    holder.communicate(b"")
    lock = StoreLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_process_that_closes_the_lock_file_elsewhere_keeps_the_store(tmp_path: Path) -> None:
    """A process loses a POSIX lock when it closes any descriptor of the file."""
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
    """As in `df`, the used fraction is used / (used + available)."""
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


def test_a_folder_in_which_one_file_cannot_be_deleted_loses_the_others_and_can_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, unlink = RealDisk(tmp_path), os.unlink
    for name in ("a/1/x", "a/2/held", "a/3/x"):
        disk.write(name, 0, b"before")

    def refuse(path: Any, *, dir_fd: int | None = None) -> None:
        if os.fspath(path).endswith("held"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError) as failed:
        disk.delete("a")
    assert "held" in str(failed.value.filename)
    assert (disk.list("a"), disk.list("a/2")) == (["2"], ["held"])
    disk.write("a/2/held", 0, b"again")  # The file is open when it is deleted.
    disk.rename("a", "a.aside")
    assert disk.read("a.aside/2/held", 0, 9) == b"againe"
    disk.write("a/2/held", 0, b"new")
    assert (disk.read("a/2/held", 0, 9), disk.read("a.aside/2/held", 0, 9)) == (b"new", b"againe")
    monkeypatch.undo()
    disk.delete("a.aside")
    assert disk.list("") == ["a"]
    disk.close()


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_folder_is_renamed_with_all_in_it(disk: Disk, is_durable: bool) -> None:
    for name in ("a/x", "a/b/y", "ab/x"):
        disk.write(name, 0, name.encode())
        disk.sync(name)
    disk.rename("a", "z")
    if is_durable and isinstance(disk, MemoryDisk):
        disk.crash(lambda count: 0)
    assert (disk.list(""), disk.list("z"), disk.list("a")) == (["ab", "z"], ["b", "x"], [])
    assert disk.read("z/b/y", 0, 9) == b"a/b/y"
    disk.write("a/x", 0, b"new")
    with pytest.raises(OSError, match="not empty"):
        disk.rename("a", "z")


def test_who_reads_a_file_that_is_deleted_meanwhile_reads_no_other_one(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.write("deleted", 0, b"deleted")
    # A reader in another thread holds the file in the same way before it reads.
    used = disk._files.take("deleted")
    assert used is not None
    disk.delete("deleted")
    disk.write("other", 0, b"other")
    assert os.pread(used.descriptor, 8, 0) == b"deleted"
    disk._files.give_back(used)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(used.descriptor)
    assert disk.read("deleted", 0, 8) == b""
    disk.close()


def opened(folder: Path) -> int:
    """Return the number of descriptors of this process that refer to files in a folder."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(os.readlink(link)).startswith(str(folder)) for link in links if os.path.lexists(link))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors by Linux's /proc")
def test_descriptors_are_bounded_and_no_byte_is_missed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, open_max=8)
    for number in range(100):
        disk.write(f"queues/{number}", 0, f"{number:4d}".encode())
        assert opened(tmp_path) <= 8
    for number in range(100):
        assert disk.read(f"queues/{number}", 0, 4) == f"{number:4d}".encode()
        assert disk.read_many(f"queues/{number}", [(0, 2), (2, 2)]) == f"{number:4d}".encode()
    assert opened(tmp_path) == 8
    disk.delete("queues")
    assert opened(tmp_path) == 0


def test_a_sync_that_fails_before_a_descriptor_goes_is_told_once_to_whoever_syncs_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure must not be reported to a caller that opens another file.

    That caller could not interpret the failure.
    """
    disk = RealDisk(tmp_path, open_max=1)
    disk.write("first", 0, b"x")
    failing = iter([OSError(5, "Input/output error")])

    def sync(descriptor: int) -> None:
        for error in failing:
            raise error

    monkeypatch.setattr(os, "fdatasync", sync)
    disk.write("second", 0, b"y")
    assert opened(tmp_path) == 1
    assert disk.read("first", 0, 1) == b"x"
    disk.write("second", 1, b"z")
    disk.sync("second")
    with pytest.raises(SyncFailed, match="first") as told:
        disk.sync("first")
    assert (told.value.errno, told.value.filename) == (5, "first")
    disk.sync("first")
    disk.close()


@pytest.mark.parametrize("end", ["delete", "delete its folder", "rename", "rename to it", "close"])
def test_a_sync_that_failed_before_a_descriptor_went_is_no_news_of_the_next_file_of_that_name(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path, open_max=1)
    disk.write("a/first", 0, b"x")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        disk.write("second", 0, b"y")
    match end:
        case "delete":
            disk.delete("a/first")
        case "delete its folder":
            disk.delete("a")
        case "rename":
            disk.rename("a/first", "third")
        case "rename to it":
            disk.rename("second", "a/first")
        case _:
            disk.close()
    disk.write("a/first", 0, b"z")
    disk.sync("a/first")
    disk.close()


def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next sync of any file fail, and let later syncs succeed, as Linux does after losing pages."""
    failing = iter([OSError(errno.EIO, "Input/output error")])

    def sync(descriptor: int) -> None:
        for error in failing:
            raise error

    monkeypatch.setattr(os, "fdatasync", sync)


def close_before_take(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next file is taken, let another thread write another file, which closes all other files."""
    take = disk._files.take

    def take_after_another_thread(path: str, *, is_made: bool = False) -> object:
        monkeypatch.setattr(disk._files, "take", take)
        disk.write("another", 0, b"y")
        return take(path, is_made=is_made)

    monkeypatch.setattr(disk._files, "take", take_after_another_thread)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_sync_fails_whose_file_another_thread_closes_just_before_with_a_failure(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sync_many` uses 16 threads, and each of them may close files that another thread has opened."""
    disk = RealDisk(tmp_path, open_max=1)
    disk.write("first", 0, b"x")
    if not is_there:
        (tmp_path / "first").unlink()
    failing_once(monkeypatch)
    close_before_take(disk, monkeypatch)
    with pytest.raises(SyncFailed, match="first"):
        disk.sync("first")
    disk.sync("first")
    disk.close()


def test_a_failure_that_one_thread_is_told_fails_the_sync_another_has_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was closed after a failed sync, and both threads depend on the writes that were lost."""
    disk = RealDisk(tmp_path, open_max=1)
    disk.write("first", 0, b"x")
    failing_once(monkeypatch)
    disk.write("second", 0, b"y")
    take_failure = disk._files.take_failure

    def take_after_another_thread(of: OpenFile | None, path: str) -> OSError | None:
        monkeypatch.setattr(disk._files, "take_failure", take_failure)
        with pytest.raises(SyncFailed, match="Input/output error"):
            disk.sync(path)
        return take_failure(of, path)

    monkeypatch.setattr(disk._files, "take_failure", take_after_another_thread)
    with pytest.raises(SyncFailed, match="another sync"):
        disk.sync("first")
    disk.sync("first")
    disk.close()


def test_bytes_that_another_threads_sync_may_lack_are_synced_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync does not cover a concurrent write if the sync ends before the system call of the write."""
    disk, real, synced = RealDisk(tmp_path, open_max=1), os.pwrite, list[str]()

    def write_after_a_sync(descriptor: int, data: bytes, position: int) -> int:
        monkeypatch.setattr(os, "pwrite", real)
        disk.sync("first")
        synced.clear()
        return real(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", write_after_a_sync)
    monkeypatch.setattr(os, "fdatasync", lambda one: synced.append(os.readlink(f"/proc/self/fd/{one}")))
    disk.write("first", 0, b"x")
    disk.write("second", 0, b"y")
    assert synced == [str(tmp_path / "first")]
    disk.close()


ACTIONS = st.sampled_from(["write", "write", "read", "sync", "sync", "break", "mend", "delete"])


@given(st.lists(st.tuples(ACTIONS, st.sampled_from("abc"))))
@settings(deadline=None)
@example([("break", "a"), ("write", "a"), ("write", "b"), ("mend", "a"), ("write", "a"), ("sync", "a")])
def test_a_sync_that_succeeds_has_lost_nothing_that_was_closed_before(script: list[tuple[str, str]]) -> None:
    """Only a sync of the file itself may report the failure."""
    broken, lost, fdatasync = set[str](), set[str](), os.fdatasync

    def sync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        if name in broken:
            lost.add(name)
            raise OSError(errno.EIO, "Input/output error")
        fdatasync(descriptor)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fdatasync", sync)
        disk = RealDisk(Path(folder), open_max=1)
        for action, name in script:
            match action:
                case "write":
                    disk.write(name, 0, b"x")
                case "read":
                    disk.read(name, 0, 1)
                case "break":
                    broken.add(name)
                case "mend":
                    broken.discard(name)
                case "delete":
                    disk.delete(name)
                    lost.discard(name)
                case _:
                    failed = disk.sync_many([name])
                    assert [(type(one), one.filename) for one in failed.values()] in (
                        [],
                        [(SyncFailed, name)],
                    )
                    lost -= failed.keys()
                    assert name not in lost
        disk.close()


def test_of_many_files_that_are_synced_at_once_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, paths = RealDisk(tmp_path), [f"queues/{number}/0" for number in range(100)]
    for path in paths:
        disk.write(path, 0, b"new")

    def sync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/7/0"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    failed = disk.sync_many(paths)
    assert {path: (type(error), error.filename) for path, error in failed.items()} == {
        "queues/7/0": (SyncFailed, "queues/7/0")
    }
    monkeypatch.undo()
    assert disk.sync_many(paths) == {}
    assert disk.sync_many([]) == {}


def test_a_sync_that_fails_for_one_thread_fails_for_all_that_sync_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a lost page once per open file, so the other sync would otherwise succeed."""
    disk = RealDisk(tmp_path)
    disk.write("log", 0, b"both flushes")
    begun, failed = Event(), Event()
    descriptors = []

    def sync(descriptor: int) -> None:
        descriptors.append(descriptor)
        if len(descriptors) == 1:
            begun.set()
            assert failed.wait(60)
            return
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(disk.sync, "log")
        assert begun.wait(60)
        with pytest.raises(SyncFailed):
            disk.sync("log")
        failed.set()
        with pytest.raises(SyncFailed, match="another sync"):
            slow.result(60)
    assert len(set(descriptors)) == 2, "each hears for itself what the kernel tells once per description"
    disk.close()


def test_threads_that_use_more_files_than_may_be_open_each_read_their_own(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, open_max=4)
    names = [f"file-{number}" for number in range(12)]
    for name in names:
        disk.write(name, 0, name.encode())

    def work(seed: int) -> int:
        chance = random.Random(seed)
        for _ in range(500):
            name = chance.choice(names)
            if chance.random() < 0.05:
                disk.delete(name)
                disk.write(name, 0, name.encode())
            assert disk.read(name, 0, 16) in (name.encode(), b"")
        return seed

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == list(range(6))
    disk.close()


def test_an_error_of_a_read_or_write_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    disk.write("commitlog/0", 0, b"x")

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "pwrite", fail)
    for call in (
        lambda: disk.read("commitlog/0", 0, 1),
        lambda: disk.read_many("commitlog/0", [(0, 1)]),
        lambda: bytes(disk.view("commitlog/0")),
        lambda: disk.write("commitlog/0", 0, b"x"),
    ):
        with pytest.raises(OSError, match="Input/output error: 'commitlog/0'"):
            call()
    disk.close()


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_failed_sync_of_a_folder_names_it_as_the_store_names_its_files(
    is_relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failing: list[str] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") in failing:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    disk = RealDisk(Path() if is_relative else tmp_path)
    for folder, name in (("", "."), ("a", "a"), ("a/b", "a/b")):
        disk.write(f"{folder}/file".lstrip("/"), 0, b"x")
        failing[:] = [str(tmp_path / folder)]
        with pytest.raises(SyncFailed) as failed:
            disk.sync_folder(folder)
        assert failed.value.filename == name
        failing.clear()
    disk.close()


def test_a_file_that_is_cut_off_under_a_view_is_an_error_and_no_signal(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.write("log", 0, bytes(3 * WINDOW_BYTES))
    view = disk.view("log")
    assert bytes(view[0:4]) == bytes(4)
    disk.truncate("log", WINDOW_BYTES)
    with pytest.raises(OSError, match="the file ends at"):
        view[2 * WINDOW_BYTES : 2 * WINDOW_BYTES + 8]
    disk.close()


def test_a_view_shows_and_finds_what_lies_across_its_windows() -> None:
    content = random.Random(5).randbytes(1_000)
    magic = re.compile(re.escape(b"magic"))
    content = content[:98] + b"magic" + content[98:400] + b"magic" + content[400:] + b"magic"
    view = whole(content).by(100)
    assert bytes(view) == content
    chance = random.Random(6)
    for _ in range(200):
        start, stop = sorted((chance.randrange(1_020), chance.randrange(1_020)))
        assert bytes(view[start:stop]) == content[start:stop]
    found = [match.start() for match in magic.finditer(content)]
    assert list(whole(content).find(magic, 0, 5)) == found
    small = View(lambda position, length: content[position : position + length], len(content), 100)
    assert list(small.find(magic, 0, 5)) == found
    assert list(small.find(magic, 99, 5)) == found[1:]
    assert len(small.upto(50)) == 50
    assert bytes(small.upto(50)[40:90]) == content[40:50]


def test_what_is_written_synced_is_there_whole_with_its_name_however_the_system_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.pwritev, []

    def in_parts(descriptor: int, parts: list[bytes], position: int, flags: int) -> int:
        written.append(flags)
        return real(descriptor, [parts[0][:5]], position, flags)

    def unknown(*given: object) -> int:
        written.append(0)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "pwritev", in_parts)
    disk = RealDisk(tmp_path)
    disk.write_synced("log/0", 2, b"twelve bytes")
    assert disk.read("log/0", 0, 20) == b"\0\0twelve bytes"
    assert written == [os.RWF_DSYNC] * 3
    monkeypatch.setattr(os, "pwritev", unknown)
    disk.write_synced("log/0", 0, b"ab")
    disk.write_synced("log/0", 14, b"!")
    assert disk.read("log/0", 0, 20) == b"abtwelve bytes!"
    assert len(written) == 4, "asked once whether there is such a call"
    disk.close()
    assert opened(tmp_path) == 0


@pytest.mark.parametrize(("error", "kind"), [(errno.EIO, SyncFailed), (errno.ENOSPC, OSError)])
def test_a_synced_write_that_fails_says_so_once_and_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, kind: type[OSError]
) -> None:
    disk = RealDisk(tmp_path)
    disk.write_synced("log/0", 0, b"one")
    kept = disk._files.take("log/0")
    assert kept is not None
    assert len(kept.own) == 1, "kept for the next write"

    def fail(*given: object) -> int:
        raise OSError(error, "fails by the test")

    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(kind, match="log/0") as failed:
        disk.write_synced("log/0", 3, b"two")
    assert (type(failed.value), kept.own) == (kind, []), "whoever comes next hears nothing of it once more"
    monkeypatch.undo()
    disk.write_synced("log/0", 3, b"two")
    disk._files.give_back(kept)
    disk.close()


def test_a_sync_that_failed_is_told_though_another_file_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the other error were reported, a caller would sync all files again and trust the result."""
    disk = RealDisk(tmp_path)
    for path in ("first", "second"):
        disk.write(path, 0, b"x")
    opened = os.open

    def open_file(path: Any, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("first"):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, flags, mode)

    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fdatasync", sync)
    failed = disk.sync_many(["first", "second"])
    assert {path: (type(error), error.errno) for path, error in failed.items()} == {
        "first": (OSError, errno.EMFILE),
        "second": (SyncFailed, errno.EIO),
    }
