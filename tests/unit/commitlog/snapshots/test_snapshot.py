"""Tests that a snapshot contains the captured state, even if the tables change afterwards."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Rows, Snapshot
from tests.memory_disk import MemoryDisk


def row(name: str, fields: tuple[int, ...]) -> tuple[Any, ...]:
    return name, *fields


@pytest.mark.parametrize("count", [0, 1, 1_999, 2_000, 2_001, 4_000])
def test_a_large_table_is_written_as_it_was_when_it_was_frozen(count: int) -> None:
    disk, table = MemoryDisk(), {f"k{number}": (number, -number) for number in range(count)}
    rows = [[name, *fields] for name, fields in table.items()]
    taken = Snapshot(
        7, {"part": {"rows": Rows([table.copy()], row), "more": {"1": [2]}, "none": {}}, "flat": rows}
    )
    table["later"] = (1, 1)
    table.pop("k0", None)
    taken.write(disk)
    read = snapshot.read(disk, 7)
    assert read is not None
    assert read.parts == {"part": {"rows": rows, "more": {"1": [2]}, "none": {}}, "flat": rows}


def test_the_bytes_are_the_json_that_versions_before_wrote() -> None:
    disk, parts = MemoryDisk(), {"a": {1: [[1, "é"], {"x": None}], "b": []}, "c": None, "d": [True, 1.5]}
    Snapshot(7, parts).write(disk)
    stored = disk.read(snapshot.path_of(7), 0, 1 << 20)
    assert zlib.decompress(stored[20:]) == json.dumps(parts, separators=(",", ":")).encode()
