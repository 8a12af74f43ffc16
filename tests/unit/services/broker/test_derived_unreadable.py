"""What the disk cannot read of the key index, which can be made anew, ends no start and no checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from errno import EACCES, EIO, EMFILE, EPERM

import pytest

from commitlog.errors import StoreDamaged
from consumequeue.runs.sorted_runs import BLOCK_BYTES
from services.broker.broker import Broker
from services.broker.timers.timer_repair import CheckJob
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.timers.test_timers import Store

RUN = f"keyindex/{0:020}"
TOLD = f"{RUN} cannot be read (fails by the test). The key index is made anew from the log at the next start."


class Sick(MemoryDisk):
    """A disk with a block of a file that it cannot read, a folder it cannot list, a file it cannot delete."""

    block = folder = stuck = "none"
    error = EIO

    def read(self, path: str, position: int, length: int) -> bytes:
        if path == self.block and position <= BLOCK_BYTES < position + length:
            raise OSError(self.error, "fails by the test", path)
        return super().read(path, position, length)

    def list(self, folder: str) -> list[str]:
        if folder == self.folder:
            raise OSError(self.error, "fails by the test", folder)
        return super().list(folder)

    def delete(self, path: str) -> None:
        if path == self.stuck:
            raise OSError(EPERM, "fails by the test", path)
        super().delete(path)


def stored() -> tuple[Store, Sick]:
    """Return a store with a message in a run of its key index, and its disk, which is well as yet."""
    store, disk = Store(), Sick()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("M0", None)
    store.checkpoint()
    return store, disk


def restart(store: Store) -> None:
    store.disk.kill(lambda _: 0)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)


def told(store: Store) -> list[tuple[str, str]]:
    return [(one.part, one.what) for one in store.broker.damage]


def is_found(store: Store, message_id: str) -> bool:
    return len(store.broker.finding.find("t", message_id, 9).messages) == 1


def test_a_start_that_reads_a_bad_sector_of_the_key_index_says_so_and_the_next_one_makes_it_anew() -> None:
    """The start reads the entries of the last minutes, to know repeated sends."""
    store, disk = stored()
    disk.block = RUN
    restart(store)
    assert told(store) == [("index", TOLD)]
    with pytest.raises(StoreDamaged, match="cannot be read"):  # there may be more messages of that key
        store.broker.finding.find("t", "M0", 9)
    store.send("M1", None)
    store.checkpoint()
    restart(store)
    assert store.broker.rebuilt_files == ["the key index: the snapshot names no sound files"]
    assert not told(store)
    assert is_found(store, "M0")
    assert is_found(store, "M1")
    store.checkpoint()
    restart(store)
    assert not store.broker.rebuilt_files


def test_a_bad_sector_of_the_key_index_that_a_checkpoint_meets_ends_no_checkpoint() -> None:
    store, disk = stored()
    disk.block = RUN
    for number in range(9):  # so many that the run is to be merged
        store.send(f"N{number}", None)
    written = store.broker.written_offset
    store.checkpoint()
    assert store.broker.written_offset > written
    assert told(store) == [("index", TOLD)]
    assert is_found(store, "N0")  # of what is newer the run knows nothing
    restart(store)
    assert store.broker.rebuilt_files
    assert is_found(store, "M0")


def test_a_bad_sector_of_the_key_index_keeps_no_background_check_from_its_work() -> None:
    store, disk = stored()
    disk.block = RUN
    store.broker.timer_repair.begin(store.now_ms)
    job = store.broker.timer_repair.next_job()
    assert isinstance(job, CheckJob)
    job.run(disk)
    store.broker.timer_repair.complete_job(job)
    assert told(store) == [("index", TOLD)]


@pytest.mark.parametrize("error", [EIO, EMFILE])
def test_a_folder_of_the_key_index_that_cannot_be_listed_has_it_made_anew(error: int) -> None:
    store, disk = stored()
    disk.folder, disk.error = "keyindex", error
    if error == EMFILE:  # says nothing of the folder
        with pytest.raises(OSError, match="fails by the test"):
            restart(store)
        return
    for _ in range(3):
        restart(store)
        assert store.broker.rebuilt_files == [
            "the key index: the folder keyindex cannot be listed (fails by the test)"
        ]
        assert is_found(store, "M0")
        store.checkpoint()
    disk.folder = "none"
    restart(store)
    assert not store.broker.rebuilt_files
    assert is_found(store, "M0")


def test_a_file_of_the_key_index_that_cannot_be_deleted_is_in_nobodys_way() -> None:
    store, disk = stored()
    disk.write(f"keyindex/{7:020}", 0, b"of a checkpoint that never ended")
    disk.stuck = f"keyindex/{7:020}"
    for number in range(12):  # past the number of that file
        restart(store)
        assert not store.broker.rebuilt_files
        store.send(f"M{number + 1}", None)
        store.checkpoint()
    assert all(is_found(store, f"M{number}") for number in range(13))


class Held(Sick):
    """A disk on which nothing can be listed, written or deleted in one folder, as of another's."""

    held = "none"

    def refuse(self, path: str) -> None:
        if f"{path}/".startswith(f"{self.held}/"):
            raise OSError(EACCES, "Permission denied", path)

    def list(self, folder: str) -> list[str]:
        self.refuse(folder)
        return super().list(folder)

    def read(self, path: str, position: int, length: int) -> bytes:
        self.refuse(path)
        return super().read(path, position, length)

    def write(self, path: str, position: int, content: bytes) -> None:
        self.refuse(path)
        super().write(path, position, content)

    def delete(self, path: str) -> None:
        self.refuse(path)
        super().delete(path)

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        if path == self.held:
            self.held = new_path


def held() -> tuple[Store, Held]:
    """Return a store with a message in a run of its key index, in a folder that refuses everything now."""
    store, disk = Store(), Held()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("M0", None)
    store.checkpoint()
    disk.held = "keyindex"
    return store, disk


def test_a_folder_of_the_key_index_that_refuses_everything_ends_no_checkpoint() -> None:
    """They failed for ever, and with too much behind the last one the broker takes no messages."""
    store, disk = held()
    store.send("M1", None)
    written = store.broker.written_offset
    store.checkpoint()
    assert store.broker.written_offset > written
    assert disk.held == "keyindex.aside-1"
    assert told(store) == [
        (
            "index",
            f"{RUN} cannot be read (keyindex was put aside: Permission denied). The key index is made anew "
            "from the log at the next start.",
        )
    ]
    with pytest.raises(StoreDamaged, match=RUN):  # there may be more messages of that key
        store.broker.finding.find("t", "M0", 9)
    restart(store)
    assert store.broker.rebuilt_files == ["the key index: the snapshot names no sound files"]
    assert all(is_found(store, f"M{number}") for number in range(2))
    store.checkpoint()
    disk.held = "none"
    restart(store)
    assert not store.broker.rebuilt_files
    assert not [path for path in disk.paths() if "aside" in path]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_start_makes_the_key_index_anew_beside_a_folder_that_refuses_everything(has_snapshot: bool) -> None:
    store, disk = held()
    if not has_snapshot:
        disk.held = "none"
        disk.delete("snapshots")
        disk.held = "keyindex"
    restart(store)
    assert is_found(store, "M0")
    store.send("M1", None)
    store.checkpoint()
    assert disk.held == "keyindex.aside-1"
    restart(store)
    assert not store.broker.rebuilt_files
    assert all(is_found(store, f"M{number}") for number in range(2))


def merges(store: Store) -> None:
    """Send so much that a checkpoint merges the run, and write that checkpoint."""
    for number in range(9):
        store.send(f"N{number}", None)
    store.broker.checkpoint(store.now_ms).write(store.disk)


@pytest.mark.parametrize("meets", [restart, merges, lambda store: is_found(store, "M0")])
def test_what_fails_for_want_of_descriptors_says_nothing_of_the_key_index(
    meets: Callable[[Store], object],
) -> None:
    store, disk = stored()
    disk.block, disk.error = RUN, EMFILE
    with pytest.raises(OSError, match="fails by the test"):
        meets(store)
    assert not told(store)
