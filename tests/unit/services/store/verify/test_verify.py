"""`verify` and `repair`: what is damaged is named with what it was; what can be made again is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from errno import EIO, EPERM
from pathlib import Path
from typing import Any, Final

import pytest

from commitlog import layout, limits
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from commitlog.log.retention import RetentionPolicy
from consumequeue import queue
from consumequeue.entry import ENTRY_BYTES
from services.broker.broker import Broker
from services.store.dump import log_lines
from services.store.read_only.opening import look_at, open_store
from services.store.read_only.reading import StoreFiles
from services.store.repair import repair
from services.store.verify import queues as verify_queues
from services.store.verify.verify import Verdict, verify
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.test_retention import KEEP_ALL, KEEP_ONE, Bench
from tests.unit.services.store.conftest import SETTINGS, START_MS, Shop

NOW_MS = 1_763_700_900_000


def proven(root: Path) -> Verdict:
    return verify(open_store(root), NOW_MS)


def repaired(root: Path) -> repair.Plan:
    with repair.locked(root) as store:
        planned = repair.plan(store, NOW_MS)
        repair.carry_out(planned, root, store, NOW_MS)
    return planned


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"
    }


def test_a_store_as_it_was_written_is_sound(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    before = files(root)
    verdict = proven(root)
    assert verdict.findings == []
    assert (verdict.record_count > 200, verdict.entry_count > 150, verdict.snapshot_count) == (True, True, 2)
    assert files(root) == before, "a proof writes nothing"


def test_a_repair_makes_queues_anew_beside_a_file_that_cannot_be_deleted(
    store_at: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, unlink = store_at("store"), os.unlink
    damaged = root / f"consumequeue/orders/0/{0:020}"
    overwrite(damaged, 3, b"\xff")
    number = damaged.stat().st_ino

    def refuse(path: Any, *, dir_fd: int | None = None) -> None:
        if os.stat(path, dir_fd=dir_fd).st_ino == number:
            raise PermissionError(EPERM, "Operation not permitted", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    assert repaired(root).makes_derived
    verdict = proven(root)
    assert verdict.is_sound, verdict
    aside = root / "consumequeue.aside-1"
    assert [one.stat().st_ino for one in aside.rglob("*") if one.is_file()] == [number]
    monkeypatch.undo()
    disk = RealDisk(root)
    Broker.open(disk, SETTINGS, NOW_MS)
    disk.close()
    assert not aside.exists()


def test_what_was_lost_is_named_set_aside_and_then_known(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    segment = root / layout.segment_path(0)
    (lost,) = [one for one in messages(root) if one["queue_offset"] == 7 and one["queue_id"] == 1]
    overwrite(segment, lost["physical_offset"] + 60, b"\xff\xff")
    end = lost["physical_offset"] + lost["record_bytes"]
    damage = f"log {lost['physical_offset']} to {end}"
    (finding,) = [one for one in proven(root).findings if one.is_damage]
    assert "it held orders queue 1 offset 7" in finding.what
    assert finding.path == layout.segment_path(0)
    before = files(root)
    planned = repaired(root)
    assert planned.lost[0].startswith(damage)
    copy = root / "quarantine" / f"{lost['physical_offset']:020d}-{end:020d}"
    assert copy.read_bytes() == segment.read_bytes()[lost["physical_offset"] : end]
    assert before.items() <= files(root).items(), "the log stays as it is"
    assert proven(root).is_sound
    assert repaired(root).is_empty
    overwrite(segment, lost["physical_offset"] + 60, b"\xfe")
    assert not proven(root).is_sound, "damage that grew is told again"


def messages(root: Path) -> list[dict[str, Any]]:
    return [line for line in log_lines(open_store(root), 0, None) if line["topic"] == "orders"]


@pytest.mark.parametrize(
    ("path", "part"), [("consumequeue/orders/1", "queue"), ("keyindex", "index"), ("snapshots", "snapshot")]
)
def test_what_is_derived_is_made_anew(store_at: Callable[[str], Path], path: str, part: str) -> None:
    root = store_at("store")
    overwrite(max((root / path).iterdir()), 24, b"\xff\xff\xff")
    assert part in {one.part for one in proven(root).findings if one.is_damage}
    planned = repaired(root)
    assert not planned.lost
    assert not planned.hopeless
    verdict = proven(root)
    assert verdict.is_sound, verdict.findings
    assert verdict.entry_count > 150


class BadSector(StoreFiles):
    """Files of which the disk cannot read one, or not list one folder."""

    bad = "nothing"

    def list(self, folder: str) -> list[str]:
        self._refuse(folder)
        return super().list(folder)

    def read(self, path: str, position: int, length: int) -> bytes:
        self._refuse(path)
        return super().read(path, position, length)

    def _refuse(self, path: str) -> None:
        if path == self.bad:
            raise self._unreadable(path, OSError(EIO, "Input/output error", path))


BAD: Final = [
    f"consumequeue/orders/0/{0:020}",
    "consumequeue/orders/0",
    "consumequeue/orders",
    "consumequeue",
    layout.QUEUES_WHOLE,
    f"keyindex/{0:020}",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_verdict_names_what_the_disk_cannot_read_of_derived_files(
    store_at: Callable[[str], Path], bad: str
) -> None:
    """One bad sector ended `verify` and `repair`, while a broker starts beside it."""
    disk = BadSector(store_at("store"))
    before = verify(look_at(disk, "the store"), NOW_MS)
    disk.bad = bad
    verdict = verify(look_at(disk, "the store"), NOW_MS)
    told = {one.path: one.is_damage for one in verdict.findings}
    assert told == {bad: bad != layout.QUEUES_WHOLE}, verdict.findings
    assert "Input/output error" in verdict.findings[0].what
    assert verdict.record_count == before.record_count
    planned = repair.plan(look_at(disk, "the store"), NOW_MS)
    assert planned.makes_derived == (bad != layout.QUEUES_WHOLE)
    assert (planned.hopeless, planned.lost) == ([], [])


@pytest.mark.parametrize("bad", BAD[:-1])
def test_what_cannot_be_read_of_queues_is_repaired(store_at: Callable[[str], Path], bad: str) -> None:
    """Here a file is a folder, or a folder a file: that cannot be read or listed either."""
    root = store_at("store")
    path = root / bad
    if path.is_dir():
        shutil.rmtree(path)
        path.write_bytes(b"no folder")
    else:
        path.unlink()
        path.mkdir()
    assert bad in {one.path for one in proven(root).findings}
    repaired(root)
    disk = RealDisk(root)
    Broker.open(disk, SETTINGS, NOW_MS).checkpoint(NOW_MS).write(disk)
    disk.close()
    assert proven(root).findings == []


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_file_of_a_queue_that_is_missing_is_named_and_repaired(
    store_at: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """`Run this again` was all that `verify` said, each time, unless it was the last one."""
    for module in (queue, verify_queues):
        monkeypatch.setattr(module, "_FILE_BYTES", 8 * ENTRY_BYTES)
    root = store_at("store")
    missing = sorted((root / "consumequeue/orders/0").iterdir())[number]
    missing.unlink()
    (told,) = {one.path for one in proven(root).findings if one.is_damage}
    assert str(missing.relative_to(root)).startswith(told)
    assert repaired(root).makes_derived
    assert proven(root).is_sound


def test_a_file_of_a_queue_that_is_deleted_while_it_is_looked_at_is_no_damage(
    store_at: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store_at("store")
    opened = open_store(root)
    check = verify_queues.QueueCheck(opened)
    (root / f"consumequeue/orders/0/{0:020}").unlink()
    with pytest.raises(StoreError, match="was deleted while it was being read"):
        list(check.findings([]))


def test_derived_files_that_are_gone_are_no_damage(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    for folder in (layout.CONSUMEQUEUE, layout.KEYINDEX):
        os.rename(root / folder, root.parent / folder)
    verdict = proven(root)
    assert verdict.is_sound
    assert [one.what for one in verdict.findings] == ["is not there; the next start makes it"] * 2


def test_a_store_without_a_snapshot_lacks_no_files_of_queues() -> None:
    shop = Shop(MemoryDisk())
    shop.settings = replace(SETTINGS, tail_entries_max=limits.TAIL_ENTRIES_MAX)
    shop.broker = Broker.open(shop.disk, shop.settings, START_MS)
    shop.trade(20, snapshots_after=())
    verdict = verify(look_at(shop.disk, "store"), NOW_MS)
    assert verdict.findings == []
    assert verdict.snapshot_count == 0


def test_records_behind_the_published_end_and_a_torn_one_are_no_damage(shop: Any) -> None:
    end = shop.broker.durable_offset
    disk = shop.disk
    tail = disk.list(layout.COMMITLOG)[-1]
    disk.write(f"{layout.COMMITLOG}/{tail}", end - int(tail) + 10, b"torn")
    verdict = verify(look_at(disk, "store"), NOW_MS)
    assert verdict.is_sound
    assert ["the next start cuts them" in one.what for one in verdict.findings] == [True]


def test_files_of_queues_that_retention_has_deleted_since_the_newest_snapshot_are_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut deletes them long before the next snapshot, which 64 MiB of log or a stop bring."""
    for module in (queue, verify_queues):
        monkeypatch.setattr(module, "_FILE_BYTES", 4 * ENTRY_BYTES)
    bench = Bench(tail_entries_max=1)
    for _ in range(120):
        bench.send()
        bench.broker.store.dispatch.write()
    three = RetentionPolicy(log_bytes_max=3 * bench.broker.segment_bytes, group_pin_ms=0)
    bench.reopen(replace(bench.settings, retention=three))
    bench.advance(10_000)
    assert f"{0:020}" not in bench.disk.list("consumequeue/t/0")
    assert [one for one in verify(look_at(bench.disk, "x"), bench.now_ms).findings if one.is_damage] == []
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files == []


def write_checkpoint(bench: Bench) -> None:
    done = bench.broker.checkpoint(bench.now_ms)
    done.write(bench.disk)
    bench.broker.complete_checkpoint(done)


def test_verify_misses_no_file_that_retention_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest snapshot has the file as the queue's last, and a tail that goes on in the next file."""
    for module in (queue, verify_queues):
        monkeypatch.setattr(module, "_FILE_BYTES", 16 * ENTRY_BYTES)
    bench = Bench()
    settings = {"tail_entries_max": 12, "queue_count": 1}
    bench.settings, bench.disk = replace(KEEP_ALL, **settings), MemoryDisk()
    bench.broker = Broker.open(bench.disk, bench.settings, bench.now_ms)
    for count in (14, 6):  # 14 go to the first file, 6 stay in the tail
        for _ in range(count):
            bench.send(body=b"x")
        bench.broker.store.dispatch.write()
    for _ in range(2):
        for _ in range(6):
            bench.send(topic="u", body=b"x" * 2_000)
        write_checkpoint(bench)
    told = bench.broker.store.dispatch.queue("t", 0)
    assert (told.end_offset, told.tail_bytes) == (20, 6 * ENTRY_BYTES)
    assert verify(look_at(bench.disk, "store"), bench.now_ms).is_sound
    bench.reopen(replace(KEEP_ONE, **settings))
    bench.advance(10_000)
    assert bench.broker.store.dispatch.queue("t", 0).min_offset == 20
    found = verify(look_at(bench.disk, "store"), bench.now_ms)
    assert [one.what for one in found.findings if one.is_damage] == []
    bench.reopen(replace(KEEP_ONE, **settings))
    assert ([*bench.broker.damage], bench.broker.rebuilt_files) == ([], []), "a start needs no repair"
