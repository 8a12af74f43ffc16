"""`store snapshot DIR`: a complete copy of a store, which a broker may be writing to, at one durable offset.

1. All segments and keep files are opened. An open file stays readable after retention deletes it.
2. The newest sound snapshot is read before the durable offset, so that it is never ahead of the copy. The
   timer files that the snapshot names are opened and copied up to the length in the snapshot.
3. Segments are copied up to the durable offset and padded with zeros. Keep files, timers, the snapshot and
   small files follow.

Queues and key index are derived and are not copied; the first start of the copy builds them. (Copies to other
nodes include them: `services.store.copying.derived`.) The encryption key and the broker's certificate are not
part of the store's content and are not copied. The copy is written to a temporary folder and renamed, so that
it is either complete or absent. The store is neither locked nor written. Another node of a cluster gets the
same files up to the newest snapshot (`services.cluster.copies.transfer`).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlog import layout, store_format
from commitlog.disk.disk import FOLDER_MODE
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from commitlog.log import imported
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from services.process.private_files import KEY_FILE, keep_from_repositories, key_of, write_for_owner
from services.store.copying.timers import HeldFile, held_timers
from services.store.progress import Progress, unseen
from services.store.read_only.opening import OpenStore, open_store
from services.store.read_only.reading import StoreFiles

CHUNK_BYTES: Final = 4 * 1024 * 1024
_TRIES_MAX: Final = 10
_UNFINISHED: Final = ".unfinished"


@dataclass(frozen=True, slots=True)
class Copied:
    """The content of a copy."""

    path: str
    first_offset: int
    durable_offset: int
    snapshot_offset: int | None
    file_count: int
    copied_bytes: int


def copy_store(root: Path, target: Path, progress: Progress = unseen, *, with_key: bool = False) -> Copied:
    """Copy the store in `root` to the folder `target`, which must be empty or missing.

    The encryption key is copied only if `with_key` is set. In this case it must be at its default path.
    """
    check_target(root, target)
    key = _key_in(root) if with_key else ""
    unfinished = target.with_name(target.name + _UNFINISHED)
    try:
        with ExitStack() as stack:
            copied = _write(hold_store(root, stack), unfinished, progress)
        if key:
            keep_from_repositories(unfinished)
            write_for_owner(unfinished / KEY_FILE, key)
        os.replace(unfinished, target)
        _sync_folder(target.parent)
    except StoreError:
        raise
    except OSError as error:
        raise _cannot_copy(target, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Copied(str(target), *copied)


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file of a copy: its path, its length, and its bytes as consecutive (position, chunk) pairs.

    `room_bytes` is the allocated size. The file is padded with zeros after `length`.
    """

    path: str
    chunks: Iterator[tuple[int, bytes]]
    length: int
    room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldStore:
    """A store whose segments, keep files and timer files are held open, and its newest snapshot."""

    store: OpenStore
    segments: dict[int, int]
    keeps: dict[str, int]
    timers: dict[str, HeldFile]
    newest: Snapshot | None

    @property
    def end_offset(self) -> int:
        """The durable offset of the log."""
        return self.store.durable_offset

    def files(self, end_offset: int) -> Iterator[FileCopy]:
        """Yield the files of a copy whose log ends at `end_offset`, except `durable` and `format`."""
        yield from self._segments(end_offset)
        for name, descriptor in self.keeps.items():
            yield file_of(f"{layout.KEEP}/{name}", descriptor, None)
        for path, (descriptor, length) in self.timers.items():
            yield file_of(path, descriptor, length)
        for path in (imported.PATH, layout.CLOCK, layout.HOLES):
            if self.store.files.size(path) >= 0:
                yield content_of(path, bytes(self.store.files.view(path)))
        if self.newest is not None:
            yield content_of(snapshot.path_of(self.newest.offset), self.newest.encode())

    def _segments(self, end_offset: int) -> Iterator[FileCopy]:
        for segment_offset in self.store.segment_offsets:
            if segment_offset >= end_offset:
                continue
            descriptor = self.segments[segment_offset]
            segment_bytes = self.store.segments.end_of(segment_offset) - segment_offset
            until = min(max(segment_bytes, _file_bytes(descriptor)), end_offset - segment_offset)
            path = layout.segment_path(segment_offset)
            yield FileCopy(path, _chunks(descriptor, until), until, max(segment_bytes, until))


def hold_store(root: Path, stack: ExitStack) -> HeldStore:
    """Open a consistent set of files. If the broker added or deleted one in the meantime, try again."""
    for _ in range(_TRIES_MAX):
        opened = stack.enter_context(ExitStack())
        files = StoreFiles(root)
        segments = _held(files, layout.COMMITLOG, opened)
        keeps = _held(files, layout.KEEP, opened)
        store = open_store(root)
        wanted = {offset for offset in store.segment_offsets if offset < store.durable_offset}
        if wanted <= {int(name) for name in segments}:
            by_offset = {int(name): descriptor for name, descriptor in segments.items()}
            newest = snapshot.newest(store.overlay())
            timers = held_timers(files, newest, opened)
            if timers is not None:
                return HeldStore(store, by_offset, keeps, timers, newest)
        opened.close()
    raise StoreError(f"{root} changes faster than it can be copied. Try again, or stop its broker first.")


def _held(files: StoreFiles, folder: str, stack: ExitStack) -> dict[str, int]:
    held = {}
    for name in files.list(folder):
        path = f"{folder}/{name}"
        if files.size(path) >= 0:
            held[name] = files.open(path)
            stack.callback(os.close, held[name])
    return held


def _write(held: HeldStore, target: Path, progress: Progress) -> tuple[int, int, int | None, int, int]:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=FOLDER_MODE, parents=True)
    first_offset, end_offset = held.store.first_offset, held.end_offset
    disk, copied_bytes = RealDisk(target), 0
    try:
        for file in held.files(end_offset):
            _write_file(disk, file)
            copied_bytes += file.length
            done_bytes = min(copied_bytes, end_offset - first_offset)
            progress("copying the log", done_bytes, end_offset - first_offset)
        layout.reset_durable(disk, end_offset)
        store_format.write(disk, store_format.encode(held.store.segment_bytes))
        file_count = sum(len(names) for _, _, names in os.walk(target))
        _sync_folders(target)
    finally:
        disk.close()
    return first_offset, end_offset, held.newest.offset if held.newest else None, file_count, copied_bytes


def _write_file(disk: RealDisk, file: FileCopy) -> None:
    if file.room_bytes:
        disk.allocate(file.path, file.room_bytes)
    disk.write(file.path, 0, b"")  # creates the file even if it is empty
    for position, chunk in file.chunks:
        disk.write(file.path, position, chunk)
    disk.sync(file.path)


def file_of(path: str, descriptor: int, until: int | None) -> FileCopy:
    """Return an open file as part of a copy, up to `until` bytes, or completely if `until` is None."""
    length = _file_bytes(descriptor) if until is None else until
    return FileCopy(path, _chunks(descriptor, length), length)


def content_of(path: str, content: bytes) -> FileCopy:
    """Return a small file as part of a copy."""
    return FileCopy(path, iter([(0, content)]), len(content))


def _file_bytes(descriptor: int) -> int:
    """Return the length of an open file."""
    return os.fstat(descriptor).st_size


def _chunks(descriptor: int, length: int) -> Iterator[tuple[int, bytes]]:
    for position in range(0, length, CHUNK_BYTES):
        yield position, os.pread(descriptor, min(CHUNK_BYTES, length - position), position)


def _key_in(root: Path) -> str:
    try:
        return key_of(root).read_text()
    except OSError as error:
        raise StoreError(
            f"{error.filename} cannot be read ({error.strerror}), and --with-key wants the key of the users."
            " Copy the file of --auth-key by hand."
        ) from error


def check_target(root: Path, target: Path) -> None:
    """Raise `StoreError` if the target is not empty or is inside the store."""
    if target.exists() and not target.is_dir():
        raise StoreError(f"{target} is a file. Name a folder that is empty or not there.")
    if target.exists() and any(target.iterdir()):
        raise StoreError(
            f"{target} is not empty; nothing was changed. Name a folder that is empty or not there."
        )
    if target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target} lies inside the store. Name a folder outside of {root}.")


def _cannot_copy(target: Path, error: OSError) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(
            f"There is no room for the copy at {target}; nothing is left there. Choose another disk."
        )
    return StoreError(
        f"{target} cannot be written ({error.strerror}). Choose a folder that this user may write."
    )


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        _sync_folder(Path(folder))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
