"""The items of tasks: what a start still has, pages, other tasks between them, and records that are lost."""

from __future__ import annotations

import pytest

from commitlog import layout
from commitlog.records.kinds import TASK_TOPIC
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.task_items import EXAMINED_MAX, TaskItem
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 20)


def flush(broker: Broker) -> None:
    while flush := broker.take_flush():
        flush.write()
        broker.complete_flush(flush, NOW_MS)


def items(*names: str) -> list[TaskItem]:
    return [TaskItem("t", name, f"id-{name}", "CANCELLED") for name in names]


def listed(broker: Broker, task: str, count_max: int, kind: str = "timers") -> list[list[str]]:
    """Return the names on each page of a task."""
    pages, after = [], None
    while (page := broker.task_items.page(task, kind, after, count_max)) is not None:
        pages.append([one.item.name for one in page.items])
        after = page.after
        if after is None:
            break
    return pages


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_items_are_there_after_a_start_in_the_order_of_the_task(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    first = broker.task_items.add_items("b", "timers", None, items("x"), NOW_MS).first
    begun = broker.task_items.add_items("a", "timers", None, items("1", "2", "3"), NOW_MS)
    broker.task_items.add_items("b", "timers", first, items("y", "z"), NOW_MS)
    broker.task_items.add_items("a", "timers", begun.first, items("4", "5"), NOW_MS + 7)
    assert listed(broker, "a", 9) == [], "what is not durable is not shown"
    flush(broker)

    broker = Broker.open(disk, SETTINGS, NOW_MS)

    assert listed(broker, "a", 9) == [["1", "2", "3", "4", "5"]]
    assert listed(broker, "a", 2) == [["1", "2"], ["3", "4"], ["5"]]
    assert listed(broker, "a", 3) == [["1", "2", "3"], ["4", "5"]]
    assert listed(broker, "b", 9) == [["x", "y", "z"]]
    assert listed(broker, "a", 9, "dead letters") == []
    assert listed(broker, "none", 9) == []
    page = broker.task_items.page("a", "timers", None, 9)
    assert page is not None
    assert [one.store_ms - NOW_MS for one in page.items] == [0, 0, 0, 7, 7]
    assert page.items[0].item == TaskItem("t", "1", "id-1", "CANCELLED")


def test_a_page_looks_at_a_bounded_number_of_records(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    first = broker.task_items.add_items("a", "timers", None, items("1"), NOW_MS).first
    other = broker.task_items.add_items("b", "timers", None, items("x"), NOW_MS).first
    for _ in range(EXAMINED_MAX):
        broker.task_items.add_items("b", "timers", other, items("y"), NOW_MS)
    broker.task_items.add_items("a", "timers", first, items("2"), NOW_MS)
    flush(broker)
    assert listed(broker, "a", 9) == [["1"], ["2"]]


def test_a_damaged_record_is_left_out(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    first = broker.task_items.add_items("a", "timers", None, items("1"), NOW_MS).first
    for name in ("2", "3"):
        broker.task_items.add_items("a", "timers", first, items(name), NOW_MS)
    flush(broker)
    entry = broker.store.dispatch.find_queue(TASK_TOPIC, 0).entry(1)
    disk.flip_bit(layout.segment_path(0), 8 * (entry.physical_offset + 90))
    assert listed(broker, "a", 9) == [["1", "3"]]
