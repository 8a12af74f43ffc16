"""The disk in memory itself: workers read it while the core writes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from tests.memory_disk import MemoryDisk

WRITES = 5_000


def test_a_file_grows_while_threads_read_it() -> None:
    disk, is_over, interval = MemoryDisk(), Event(), sys.getswitchinterval()
    disk.write("file", 0, b"x")

    def read() -> int:
        longest = 0
        while not is_over.is_set():
            longest = max(longest, len(disk.read("file", 0, 2 * WRITES)))
        return longest

    sys.setswitchinterval(1e-6)  # so that a write meets the middle of a read
    try:
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for position in range(1, WRITES):
                    disk.write("file", position, b"x")
            finally:
                is_over.set()
            assert all(1 <= reader.result() <= WRITES for reader in readers)
    finally:
        sys.setswitchinterval(interval)
    assert disk.read("file", 0, 2 * WRITES) == b"x" * WRITES
