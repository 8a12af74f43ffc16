"""A disk whose operations fail where a test says so, and pauses that pass when it says so."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable

from tests.memory_disk import MemoryDisk


class FailingDisk(MemoryDisk):
    """A disk whose operations fail where `fails` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str, str], int] = lambda operation, path: 0

    def read(self, path: str, position: int, length: int) -> bytes:
        self._may_fail("read", path)
        return super().read(path, position, length)

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        self._may_fail("read", path)
        return super().read_many(path, spans)

    def view(self, path: str) -> memoryview:
        self._may_fail("read", path)
        return super().view(path)

    def write(self, path: str, position: int, data: bytes) -> None:
        self._may_fail("write", path)
        super().write(path, position, data)

    def sync(self, path: str) -> None:
        self._may_fail("sync", path)
        super().sync(path)

    def allocate(self, path: str, length: int) -> None:
        self._may_fail("allocate", path)
        super().allocate(path, length)

    def delete(self, path: str) -> None:
        self._may_fail("delete", path)
        super().delete(path)

    def _may_fail(self, operation: str, path: str) -> None:
        number = self.fails(operation, path)
        if number:
            raise OSError(number, errno.errorcode[number], path)

    def heal(self) -> None:
        self.fails = lambda operation, path: 0


class Pauses:
    """Calls that are planned, made when the test says so; those of the moment are made by the loop."""

    def __init__(self) -> None:
        self.planned: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        if seconds == 0:
            return asyncio.get_running_loop().call_soon(call)
        self.planned.append((seconds, call))
        return asyncio.Handle(call, (), asyncio.get_running_loop())

    def pass_by(self) -> list[float]:
        """Let every pause pass; returns how long they were."""
        planned, self.planned = self.planned, []
        for _, call in planned:
            call()
        return [seconds for seconds, _ in planned]


def failing(*operations: str, under: str = "", number: int = errno.EIO) -> Callable[[str, str], int]:
    return lambda operation, path: number if operation in operations and path.startswith(under) else 0
