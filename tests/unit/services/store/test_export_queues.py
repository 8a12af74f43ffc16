"""Whole ConsumeQueue files of a store, entry by entry as its log has them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from consumequeue import entry
from consumequeue.dispatch import entry_of, is_indexed
from consumequeue.queue import ConsumeQueue
from services.store import export_queues as exporting
from services.store.export_queues import export_queues
from services.store.read_only.opening import open_store

NOW_MS = 1_763_700_600_000

Entries = dict[tuple[str, int, int], entry.Entry]


def of_log(root: Path) -> Entries:
    """What the log's records have as entries."""
    indexed = (one for one in open_store(root).scan() if is_indexed(one.record))
    return {
        (one.record.topic, one.record.queue_id, one.record.queue_offset): entry_of(
            one.record, one.record_bytes, one.record.queue_offset
        )
        for one in indexed
    }


def in_files(root: Path) -> Entries:
    """What files of queues hold, but for holes."""
    found: Entries = {}
    for path in (root / layout.CONSUMEQUEUE).glob("*/*/*"):
        first = int(path.name) // entry.ENTRY_BYTES
        for number, one in enumerate(entry.decode_all(path.read_bytes())):
            if one.record_bytes:
                found[(path.parts[-3], int(path.parts[-2]), first + number)] = one
    return found


@pytest.mark.parametrize("is_damaged", [False, True])
def test_all_entries_are_there_as_the_log_has_them(
    store_at: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    root = store_at("store")
    monkeypatch.setattr(exporting, "_AT_ONCE", 7)
    if is_damaged:
        path = max((root / layout.CONSUMEQUEUE / "orders" / "1").iterdir())
        path.write_bytes(b"\xff" * path.stat().st_size)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    exported = export_queues(root, tmp_path / "whole", NOW_MS)
    assert in_files(tmp_path / "whole") == of_log(root)
    assert exported.entry_count == len(of_log(root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_folder_in_use_and_one_inside_the_store_are_refused(
    store_at: Callable[[str], Path], tmp_path: Path
) -> None:
    root = store_at("store")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(StoreError, match="is not empty"):
        export_queues(root, tmp_path / "used", NOW_MS)
    with pytest.raises(StoreError, match="lies inside the store"):
        export_queues(root, root / "queues", NOW_MS)
    assert RealDisk(root).list("queues") == []


def test_what_will_be_written_is_told_before(store_at: Callable[[str], Path], tmp_path: Path) -> None:
    told: list[tuple[exporting.PlannedExport, bool]] = []
    target = tmp_path / "whole"
    done = export_queues(
        store_at("store"), target, NOW_MS, lambda planned: told.append((planned, target.exists()))
    )
    [(planned, was_there)] = told
    assert not was_there
    assert (planned.queue_count, planned.entry_count) == (done.queue_count, done.entry_count)
    files = [one for one in target.rglob("*") if one.is_file()]
    assert planned.file_count == done.file_count == len(files)
    assert planned.disk_bytes >= sum(one.stat().st_blocks * 512 for one in files) > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("was_there", [False, True])
def test_an_export_that_ends_before_its_time_leaves_nothing(
    store_at: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    was_there: bool,
) -> None:
    root, target, rows = store_at("store"), tmp_path / "new" / "whole", ConsumeQueue.rows
    if was_there:
        target.mkdir(parents=True)
    read: list[int] = []

    def fail_later(queue: ConsumeQueue, first: int, count: int) -> Any:
        read.append(first)
        if len(read) == 3:
            assert any(one.is_file() for one in target.rglob("*")), "some is written"
            raise error
        return rows(queue, first, count)

    monkeypatch.setattr(ConsumeQueue, "rows", fail_later)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StoreError):
        export_queues(root, target, NOW_MS)
    assert target.exists() == was_there
    assert [one for one in tmp_path.rglob("*") if one.is_file() and not one.is_relative_to(root)] == []
    monkeypatch.undo()
    (target / exporting.UNFINISHED / "orders").mkdir(parents=True)  # of a process that was killed
    assert export_queues(root, target, NOW_MS).entry_count == len(in_files(target)) > 0


def test_a_disk_without_room_is_told_before_anything_is_written(
    store_at: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_BLOCK_BYTES", 1 << 50)
    with pytest.raises(StoreError, match=r"bytes free, the files take \d+\. Nothing was written"):
        export_queues(store_at("store"), tmp_path / "whole", NOW_MS)
    assert not (tmp_path / "whole").exists()
