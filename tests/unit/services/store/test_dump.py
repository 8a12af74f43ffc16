"""`store dump queue`: all entries of a queue, wherever they are, and where that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreError
from commitlog.snapshots import snapshot
from services.broker.spine.errors import TopicNotFound
from services.store.dump import queue_lines
from services.store.read_only.opening import open_store
from services.store.verify.verify import verify
from tests.unit.services.store.test_export_queues import NOW_MS, of_log


def dumped(root: Path, topic: str, queue_id: int) -> dict[int, int]:
    """Where in the log the records of a queue are, by queue offset, as the dump has it."""
    lines = list(queue_lines(open_store(root), topic, queue_id, 0))
    assert len({one["queue_offset"] for one in lines}) == len(lines)
    return {one["queue_offset"]: one["physical_offset"] for one in lines if not one["gap"]}


def remove_snapshots(root: Path) -> None:
    """Leave a store as it is before its first snapshot."""
    for offset in snapshot.offsets(RealDisk(root)):
        (root / snapshot.path_of(offset)).unlink()
    for path in (root / layout.CONSUMEQUEUE).glob("*/*/*"):
        path.unlink()


@pytest.mark.parametrize("where", ["file", "log"])
def test_entries_are_printed_wherever_they_are(store_at: Callable[[str], Path], where: str) -> None:
    root = store_at("store")
    if where == "log":
        remove_snapshots(root)
    wanted: dict[tuple[str, int], dict[int, int]] = {}
    for (topic, queue_id, queue_offset), one in of_log(root).items():
        wanted.setdefault((topic, queue_id), {})[queue_offset] = one.physical_offset
    assert {name: dumped(root, *name) for name in wanted} == wanted
    places = Counter(one["where"] for name in wanted for one in queue_lines(open_store(root), *name, 0))
    assert set(places) == {where}
    verdict = verify(open_store(root), NOW_MS)
    assert verdict.entry_count == len(of_log(root))
    assert verdict.unwritten_count == places["log"]


def test_dump_begins_where_it_is_told(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    lines = list(queue_lines(open_store(root), "orders", 1, 3))
    assert [one["queue_offset"] for one in lines] == sorted(dumped(root, "orders", 1))[3:]
    assert list(queue_lines(open_store(root), "orders", 1, 1 << 40)) == []


def test_a_file_that_cannot_be_read_is_named_in_place_of_its_entries(store_at: Callable[[str], Path]) -> None:
    root = store_at("store")
    (path,) = (root / "consumequeue/orders/1").iterdir()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=f"{path.relative_to(root)} cannot be read .*store repair"):
        list(queue_lines(open_store(root), "orders", 1, 0))


def test_a_queue_without_entries_is_told_with_where_was_looked(store_at: Callable[[str], Path]) -> None:
    store = open_store(store_at("store"))
    with pytest.raises(TopicNotFound, match=f"in the log up to {store.durable_offset}"):
        list(queue_lines(store, "orders", 77, 0))
