"""The core reads no clock, starts no thread and rolls no dice: it does not even import what could."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"time", "asyncio", "threading", "random", "datetime", "concurrent", "secrets"}
CORE = ("commitlog", "consumequeue", "timingwheel", "txn", "services/broker", "services/auth")
EDGE = {
    "commitlog/disk/descriptors.py": "the files of the real disk are used by several threads",
    "commitlog/disk/real_disk.py": "a file system syncs many files together only where several threads ask",
    "services/broker/schedules/recurrence.py": "CronTrigger speaks datetime; calendar sums read no clock",
}


def core_files() -> Iterator[str]:
    for folder in CORE:
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name not in EDGE:
                yield name


def imported(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", sorted(core_files()))
def test_a_core_file_imports_no_clock_thread_or_chance(path: str) -> None:
    assert not FORBIDDEN & set(imported(path)), path


def test_the_core_is_found_and_the_exceptions_exist() -> None:
    assert len(list(core_files())) > 30
    assert all((ROOT / path).exists() for path in EDGE)
    assert "threading" in set(imported("commitlog/disk/descriptors.py"))
    assert "concurrent" in set(imported("commitlog/disk/real_disk.py"))


@pytest.mark.parametrize("path", sorted(core_files()))
def test_a_core_file_writes_no_time_of_its_own_clock(path: str) -> None:
    """Users' clocks may differ from the core's (`services.live.clock`), so its errors state distances."""
    named = {
        alias.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not {"utc", "display"} & named, path
