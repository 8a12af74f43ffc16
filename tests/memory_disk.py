"""A disk in memory that fails as disks do: it dies, loses, tears, fills, and lies after a failed sync.

A file has what is on disk (`durable`) and what a reader sees (`current`, the page cache); between them lies
what was written and not synced. The names of files are likewise on disk or only in memory.

    `crash`   the power goes: of what was not synced, each write is kept whole, in part or not at all, and
              each name too, as the caller's `choose` decides; what was synced stays
    `kill`    the process goes: the page cache stays, but pages that a failed sync gave up may be dropped

Every operation that changes anything is counted in `operations`. One of them, chosen by `strike`, is the last
of the process (`Death`), before, amid or after it, or fails (OSError), with nothing or a part of it done:

    operation          amid it
    write              a part of the bytes was written
    sync               a part of the writes is on disk
    allocate           a part of the length is there; it fails for want of room
    truncate           the file is shorter in memory only
    rename, delete     done in memory, the folder is not synced; of a folder only some files are deleted
    sync_folder        some names are on disk

A sync that failed is never made good: some of the writes are on disk, the others are not, they can still be
read, and the next sync succeeds without them, as Linux has it ("fsyncgate", Rebello et al., ATC 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from errno import EACCES, EIO, ENOSPC, ENOTEMPTY, EPERM
from typing import Final

from commitlog.disk.disk import SyncFailed
from commitlog.disk.view import View

Choose = Callable[[int], int]
"""Of n, how many; from 0 to n."""


class Death(BaseException):
    """The process died inside a disk operation; so does every later one, until `crash` or `kill`."""


class Fault(Enum):
    """What becomes of a struck operation."""

    DIES_BEFORE = "dies before"
    DIES_WITHIN = "dies within"
    DIES_AFTER = "dies after"
    FAILS = "fails"
    FAILS_WITHIN = "fails within"

    @property
    def is_deadly(self) -> bool:
        """Whether the process ends with it."""
        return self in (Fault.DIES_BEFORE, Fault.DIES_WITHIN, Fault.DIES_AFTER)


_BEFORE = (Fault.DIES_BEFORE, Fault.FAILS)
_WITHIN = (Fault.DIES_WITHIN, Fault.FAILS_WITHIN)

Change = tuple[int, bytes | None]
"""A write at a position, or, without bytes, a change of the file's length to it."""


class _Image:
    """The bytes of a file; zeros behind the last that was written take no room (a segment has a gigabyte)."""

    __slots__ = ("_length", "_written")

    def __init__(self, written: bytearray | None = None, length: int = 0) -> None:
        self._written, self._length = bytearray() if written is None else written, length

    def __len__(self) -> int:
        return self._length

    def copy(self) -> _Image:
        """Returns another with the same bytes."""
        return _Image(self._written[:], self._length)

    def read(self, position: int, length: int) -> bytes:
        """Returns so many bytes, fewer at the end.

        No view of the array is taken: a worker reads while the core writes, and no array grows below a view.
        """
        return _part_of(self._written, self._length, position, length)

    def view(self) -> View:
        """Returns a view of it as it is now."""
        written, length = memoryview(bytes(self._written)), self._length
        return View(lambda position, wanted: _part_of(written, length, position, wanted), length)

    def change(self, position: int, data: bytes | None) -> None:
        """Makes one change."""
        if data is None:
            del self._written[position:]
            self._length = position
        elif data:
            self._written.extend(bytes(max(0, position - len(self._written))))
            self._written[position : position + len(data)] = data
            self._length = max(self._length, len(self._written))

    def flip(self, bit: int) -> None:
        """Flips one bit, if there is one."""
        if bit // 8 < self._length:
            (byte,) = self.read(bit // 8, 1)
            self.change(bit // 8, bytes([byte ^ 1 << bit % 8]))


@dataclass(slots=True, eq=False)
class _File:
    durable: _Image = field(default_factory=_Image)
    current: _Image = field(default_factory=_Image)
    unsynced: list[Change] = field(default_factory=list)
    is_given_up: bool = False
    """Whether a failed sync has given up some of what can be read."""

    def change(self, position: int, data: bytes | None) -> None:
        self.current.change(position, data)
        self.unsynced.append((position, data))

    def sync(self, choose: Choose | None = None) -> None:
        """Takes all changes to disk, or as much of each as is chosen."""
        for position, data in self.unsynced:
            _apply(self.durable, position, data if choose is None else _part(data, choose), choose)
        self.unsynced.clear()

    def forget(self) -> None:
        """Drops the pages that are not on disk, though they count as clean."""
        if self.is_given_up:
            self.current = self.durable.copy()
            for position, data in self.unsynced:
                self.current.change(position, data)
            self.is_given_up = False


@dataclass(slots=True, frozen=True)
class _Naming:
    """Names that a folder's sync makes durable, all at once: a path leads to a file, or to none any more."""

    folder: str
    names: tuple[tuple[str, _File | None], ...]


BLOCK_BYTES: Final = 4096


class MemoryDisk:
    """A `Disk` whose failures are chosen by the test."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._durable_files: dict[str, _File] = {}
        self._namings: list[_Naming] = []
        self.total_bytes = 1 << 40
        """How large the disk says it is."""
        self.failing_syncs = 0
        """How many of the next syncs fail."""
        self.operations = 0
        """How many operations there were that change something."""
        self.trace: list[str] | None = None
        """What they were, if somebody wants to know."""
        self.bad_sectors: dict[str, dict[int, int]] = {}
        """By path, the blocks that cannot be read, and how many more reads of each fail.

        A block that is written can be read: a drive puts it elsewhere. Not played: Linux reads the rest of a
        block of which a part is written, so that write may fail.
        """
        self.choose: Choose = lambda count: count // 2
        """How much of a struck operation is done."""
        self.is_struck = False
        """Whether the operation that `strike` named has come."""
        self._strike_in = 0
        self._fault = Fault.FAILS
        self._error = EIO
        self._is_lasting = False
        self._is_dead = False

    # What befalls it.

    def strike(self, number: int, fault: Fault, error: int = EIO, *, is_lasting: bool = False) -> None:
        """The `number`-th operation from now on dies or fails; `is_lasting`: all after it fail too.

        0 calls it off, as a disk does that works again.
        """
        self._strike_in, self._fault, self._error, self._is_lasting = number, fault, error, is_lasting
        self.is_struck = False

    def well(self) -> None:
        """Nothing fails from now on."""
        self.strike(0, Fault.FAILS)
        self.failing_syncs = 0

    def crash(self, choose: Choose) -> None:
        """Loses power: of each un-synced write of n bytes, the first `choose(n)` bytes reach the disk."""
        for file in dict.fromkeys([*self._durable_files.values(), *self._files.values()]):
            file.sync(choose)
            file.current, file.is_given_up = file.durable.copy(), False
        for naming in self._namings:
            if choose(1):
                self._name(self._durable_files, naming)
        self._namings.clear()
        self._files = dict(self._durable_files)
        self._is_dead = False
        self.well()

    def kill(self, choose: Choose) -> None:
        """Ends the process: its writes stay in memory, save what a failed sync has given up, if chosen so."""
        for file in self._files.values():
            if file.is_given_up and choose(1):
                file.forget()
        self._is_dead = False
        self.well()

    def flip_bit(self, path: str, bit: int) -> None:
        """Flips one bit of what is on disk; bits count from the file's first byte, lowest first."""
        file = self._files[path]
        for image in (file.durable, file.current):
            image.flip(bit)

    def paths(self) -> list[str]:
        """Every file that a reader sees."""
        return sorted(self._files)

    # What a store asks of it.

    def list(self, folder: str) -> list[str]:
        inside = f"{folder}/" if folder else ""
        begins = len(inside)
        paths = [path for path in self._files if path.startswith(inside)]
        return sorted({path[begins:].partition("/")[0] for path in paths})

    def size(self, path: str) -> int:
        file = self._files.get(path)
        return -1 if file is None else len(file.current)

    def read(self, path: str, position: int, length: int) -> bytes:
        assert position >= 0, f"byte {position} of {path} is read"  # `pread` fails, a slice would not
        if path in self.bad_sectors:
            self._fail_to_read(path, position, length)
        return self._existing(path).current.read(position, length)

    def _fail_to_read(self, path: str, position: int, length: int) -> None:
        blocks = self.bad_sectors[path]
        end = min(position + length, self.size(path))
        for block in range(position // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1) if end > position else ():
            if blocks.get(block, 0) > 0:
                blocks[block] -= 1
                raise OSError(EIO, "a sector cannot be read, by the test", path)

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        return b"".join([self.read(path, position, length) for position, length in spans])

    def view(self, path: str) -> View:
        return self._existing(path).current.view()

    def write(self, path: str, position: int, data: bytes) -> None:
        assert position >= 0, f"byte {position} of {path} is written"  # as for reads
        fault = self._begin("write", path, grows=position + len(data) > self.size(path))
        if path in self.bad_sectors:
            self._put_elsewhere(path, position, position + len(data))
        self._file(path).change(position, _part(data, self.choose) if fault in _WITHIN else data)
        self._end(fault, path)

    def _put_elsewhere(self, path: str, first: int, end: int) -> None:
        blocks = self.bad_sectors[path]
        for block in [*blocks]:
            if first < (block + 1) * BLOCK_BYTES and end > block * BLOCK_BYTES:
                del blocks[block]

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        self.write(path, position, data)
        self.sync(path)

    def sync(self, path: str) -> None:
        fault = self._begin("sync", path)
        if self.failing_syncs and fault is None:
            self.failing_syncs -= 1
            self._give_up(self._existing(path))
            raise SyncFailed(EIO, "sync failed by the test", path)
        self._sync(path, fault)
        self._end(fault, path)

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        failed = dict[str, OSError]()
        for path in paths:
            try:
                self.sync(path)
            except OSError as error:
                failed[path] = error
        return failed

    def allocate(self, path: str, length: int) -> None:
        assert length > 0, f"{length} bytes of {path} are reserved"  # `posix_fallocate` fails
        fault = self._begin("allocate", path, grows=length > self.size(path))
        file = self._file(path)
        missing = max(0, length - len(file.current))
        if fault in _WITHIN:
            file.change(length - missing + self.choose(missing), None)
            self._end(fault, path)
        if missing:
            file.change(length, None)
        file.sync()
        self._sync_names(_folder(path))
        self._end(fault, path)

    def truncate(self, path: str, length: int) -> None:
        assert length >= 0, f"{path} is cut to {length} bytes"
        fault = self._begin("truncate", path)
        file = self._file(path)
        file.change(length, None)
        self._sync(path, fault)
        self._end(fault, path)

    def sync_folder(self, folder: str) -> None:
        fault = self._begin("sync_folder", folder)
        self._sync_names(folder, self.choose if fault in _WITHIN else None)
        self._end(fault, folder, is_done=fault is Fault.FAILS_WITHIN)

    def will_need(self, path: str) -> None:
        pass

    def usage(self) -> tuple[int, int]:
        used = sum(len(file.current) for file in self._files.values())
        return max(0, self.total_bytes - used), self.total_bytes

    def rename(self, path: str, new_path: str) -> None:
        inside = [name for name in self._files if name.startswith(f"{path}/")]
        if inside and self.list(new_path):
            raise OSError(ENOTEMPTY, "Directory not empty", path)
        fault = self._begin("rename", path)
        if inside:
            self._rename_folder(path, new_path, inside)
        else:
            file = self._file(path)
            assert not file.unsynced, f"{path} was renamed before it was synced"
            self._namings = [one for one in self._namings if one.names != ((path, file),)]
            self._change_names(_Naming(_folder(new_path), ((new_path, file), (path, None))))
        if fault not in _WITHIN:
            self._sync_names(_folder(new_path))
        self._end(fault, path, is_done=fault is Fault.FAILS_WITHIN)

    def _rename_folder(self, path: str, new_path: str, inside: Sequence[str]) -> None:
        """All that lies in it is there or here; names in it that were not synced are taken for durable."""
        assert _folder(path) == _folder(new_path), f"{path} is moved to another folder"
        moved = [(name, f"{new_path}{name[len(path) :]}", self._files[name]) for name in inside]
        self._namings = [
            one for one in self._namings if not any(name.startswith(f"{path}/") for name, _ in one.names)
        ]
        there = tuple((new_name, file) for _, new_name, file in moved)
        gone = tuple((name, None) for name, _, _ in moved)
        self._change_names(_Naming(_folder(new_path), (*there, *gone)))

    def delete(self, path: str) -> None:
        names = [name for name in self._files if name == path or name.startswith(f"{path}/")]
        if not names:
            return
        fault = self._begin("delete", path)
        if fault in _WITHIN:
            names = [name for name in names if len(names) == 1 or self.choose(1)]
        for name in names:
            self.bad_sectors.pop(name, None)
            self._change_names(_Naming(_folder(path), ((name, None),)))
        if fault not in _WITHIN:
            self._sync_names(_folder(path))
            if names != [path]:
                self._forget_within(f"{path}/")
        self._end(fault, path, is_done=fault is Fault.FAILS_WITHIN)

    # How it fails.

    def _begin(self, kind: str, path: str, *, grows: bool = False) -> Fault | None:
        """Counts an operation; returns what is to befall it once it has begun.

        A full disk fails only what needs room.
        """
        if self._is_dead:
            raise Death(f"{kind} {path}, after the end")
        self.operations += 1
        if self.trace is not None:
            self.trace.append(f"{kind} {path}")
        if self._strike_in == 0:
            return None
        self._strike_in = max(1, self._strike_in - 1) if self._is_waiting(grows) else self._strike_in - 1
        if self._strike_in > 0:
            return None
        self.is_struck = True
        fault = self._fault
        if self._is_lasting and not fault.is_deadly:
            self._strike_in = 1
        if fault in _BEFORE:
            if kind == "sync" and not fault.is_deadly:
                self._give_up(self._existing(path))
                raise SyncFailed(self._error, "fails by the test", path)
            self._end(fault, path)
        return fault

    def _is_waiting(self, grows: bool) -> bool:
        """Whether the fault is a full disk, and this operation needs no room."""
        return self._error == ENOSPC and not self._fault.is_deadly and not grows

    def _end(self, fault: Fault | None, path: str, *, is_done: bool = False) -> None:
        """Carries the fault out; `is_done`: the operation is done, and the sync behind it failed."""
        if fault is None:
            return
        if fault.is_deadly:
            self._is_dead = True
            raise Death(f"{fault.value} {path}")
        kind = SyncFailed if is_done else OSError
        raise kind(self._error, f"{fault.value} by the test", path)

    def _sync(self, path: str, fault: Fault | None) -> None:
        file = self._existing(path)
        if fault is Fault.FAILS_WITHIN:
            self._give_up(file)
            raise SyncFailed(self._error, "fails within by the test", path)
        if fault is Fault.DIES_WITHIN:
            return
        file.sync()
        if any(path == name for naming in self._namings for name, _ in naming.names):
            self._sync_names(_folder(path))

    def _give_up(self, file: _File) -> None:
        """A sync has failed: lengths stay to be synced, writes reach the disk in part or never."""
        lengths = [one for one in file.unsynced if one[1] is None]
        file.unsynced = [one for one in file.unsynced if one[1] is not None]
        file.is_given_up = file.is_given_up or bool(file.unsynced)
        file.sync(self.choose)
        file.unsynced = lengths

    def _existing(self, path: str) -> _File:
        """The file, or an empty one that is not kept."""
        return self._files.get(path) or _File()

    def _file(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            file = _File()
            self._change_names(_Naming(_folder(path), ((path, file),)))
        return file

    def _change_names(self, naming: _Naming) -> None:
        self._name(self._files, naming)
        self._namings.append(naming)

    def _sync_names(self, folder: str, choose: Choose | None = None) -> None:
        left = []
        for naming in self._namings:
            if naming.folder == folder and (choose is None or choose(1)):
                self._name(self._durable_files, naming)
            else:
                left.append(naming)
        self._namings = left

    def _forget_within(self, inside: str) -> None:
        """With a folder all that it held is gone, also names that were never synced."""
        left = [one for one in self._namings if not any(name.startswith(inside) for name, _ in one.names)]
        self._namings = left
        for name in [name for name in self._durable_files if name.startswith(inside)]:
            del self._durable_files[name]

    def _name(self, files: dict[str, _File], naming: _Naming) -> None:
        for path, file in naming.names:
            if file is None:
                files.pop(path, None)
            else:
                files[path] = file


class Unyielding(MemoryDisk):
    """A disk that deletes no file which `hold` named, nor writes beside it, as in another owner's folder."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[_File, None] = {}
        self.keeps_names = False
        """Whether no folder can be renamed either."""

    def hold(self, folder: str) -> None:
        """Let go of no file that lies in a folder now, wherever it goes with that."""
        self._held |= {file: None for path, file in self._files.items() if path.startswith(f"{folder}/")}

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._held.clear()

    def write(self, path: str, position: int, data: bytes) -> None:
        if any(file in self._held for one, file in self._files.items() if _folder(one) == _folder(path)):
            raise OSError(EACCES, "Permission denied", path)
        super().write(path, position, data)

    def delete(self, path: str) -> None:
        inside = [one for one in self._files if one == path or one.startswith(f"{path}/")]
        held = [one for one in inside if self._files[one] in self._held]
        if not held:
            super().delete(path)
            return
        for one in inside:
            if one not in held:
                super().delete(one)
        raise OSError(EACCES, "Permission denied", held[0])

    def rename(self, path: str, new_path: str) -> None:
        if self.keeps_names and self.size(path) < 0:
            raise OSError(EPERM, "Operation not permitted", path)
        super().rename(path, new_path)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _part(data: bytes | None, choose: Choose) -> bytes | None:
    return data if data is None else data[: choose(len(data))]


def _part_of(written: bytearray | memoryview, file_bytes: int, position: int, length: int) -> bytes:
    """Returns so many bytes of a file, of which zeros behind those written are left out."""
    end = min(position + length, file_bytes)
    zeros = end - max(position, len(written))
    return bytes(written[position:end]) + bytes(zeros) if zeros > 0 else bytes(written[position:end])


def _apply(image: _Image, position: int, data: bytes | None, choose: Choose | None) -> None:
    """Makes one change; of a new length it is chosen whether it is made."""
    if data is not None or choose is None or choose(1):
        image.change(position, data)
