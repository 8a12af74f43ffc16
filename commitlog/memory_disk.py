"""A disk in memory that can crash: it loses, tears and keeps un-synced writes, and fails when told to.

Every file has a durable image and the writes since its last sync. A `crash` keeps of each un-synced
write nothing, all, or a prefix, as the caller's `choose` decides; what was synced always stays.
`allocate`, `truncate`, `rename` and `delete` are durable at once, as `Disk` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)


class MemoryDisk:
    """A `Disk` whose failures are chosen by the test."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self.total_bytes = 1 << 40
        """How large the disk says it is."""
        self.failing_syncs = 0
        """How many of the next syncs raise OSError."""

    def list(self, folder: str) -> list[str]:
        inside = f"{folder}/" if folder else ""
        return sorted({path[len(inside) :].split("/")[0] for path in self._files if path.startswith(inside)})

    def size(self, path: str) -> int:
        file = self._files.get(path)
        return -1 if file is None else len(file.current)

    def read(self, path: str, position: int, length: int) -> bytes:
        return bytes(self._existing(path).current[position : position + length])

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        return b"".join([self.read(path, position, length) for position, length in spans])

    def view(self, path: str) -> memoryview:
        return memoryview(bytes(self._existing(path).current))

    def write(self, path: str, position: int, data: bytes) -> None:
        file = self._file(path)
        _place(file.current, position, data)
        file.unsynced.append((position, data))

    def sync(self, path: str) -> None:
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(5, "sync failed by the test", path)
        file = self._existing(path)
        file.durable[:] = file.current
        file.unsynced.clear()

    def allocate(self, path: str, length: int) -> None:
        file = self._file(path)
        for image in (file.durable, file.current):
            image.extend(bytes(max(0, length - len(image))))

    def truncate(self, path: str, length: int) -> None:
        file = self._file(path)
        for image in (file.durable, file.current):
            del image[length:]
        file.unsynced = [
            (position, data) for position, data in file.unsynced if position + len(data) <= length
        ]

    def sync_folder(self, folder: str) -> None:
        """Names are durable at once here."""

    def will_need(self, path: str) -> None:
        pass

    def usage(self) -> tuple[int, int]:
        used = sum(len(file.current) for file in self._files.values())
        return max(0, self.total_bytes - used), self.total_bytes

    def rename(self, path: str, new_path: str) -> None:
        assert not self._file(path).unsynced, f"{path} was renamed before it was synced"
        self._files[new_path] = self._files.pop(path)

    def delete(self, path: str) -> None:
        for name in [name for name in self._files if name == path or name.startswith(f"{path}/")]:
            del self._files[name]

    def crash(self, choose: Callable[[int], int]) -> None:
        """Loses power: of each un-synced write of n bytes, the first `choose(n)` bytes reach the disk."""
        for file in self._files.values():
            for position, data in file.unsynced:
                _place(file.durable, position, data[: choose(len(data))])
            file.current = bytearray(file.durable)
            file.unsynced.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Flips one bit of what is on disk; bits count from the file's first byte, lowest first."""
        file = self._file(path)
        for image in (file.durable, file.current):
            image[bit // 8] ^= 1 << (bit % 8)

    def _existing(self, path: str) -> _File:
        """The file, or an empty one that is not kept."""
        return self._files.get(path) or _File()

    def _file(self, path: str) -> _File:
        return self._files.setdefault(path, _File())


def _place(image: bytearray, position: int, data: bytes) -> None:
    if data:
        image.extend(bytes(max(0, position + len(data) - len(image))))
        image[position : position + len(data)] = data
