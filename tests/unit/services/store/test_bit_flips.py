"""Bits all over a store (fewer of its indexes) are flipped: only the record that it hits is lost.

A bit may hit a record, a filler, the unused end of a segment, an entry of a queue or a snapshot. Apache
RocketMQ lost 31 good records of 42 to one such bit. In the files of timers each flip is told too, and costs
nothing, for the log has all their records. `tests/endurance/damage.py` has all kinds of files and of faults.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from commitlog import layout
from commitlog.errors import StoreDamaged
from commitlog.log.recovery import FoundRecord, LogScan
from services.broker.broker import Broker
from services.store.read_only.opening import look_at
from services.store.read_only.state import fold
from services.store.verify.verify import verify
from tests.memory_disk import MemoryDisk

BIT_STEP = 1_553
TIMER_FOLDERS = {layout.TIMERS: 1, layout.TIMER_NAMES: 8, layout.TIMER_ENDS: 8}
FOLDERS = {layout.COMMITLOG: 2, layout.CONSUMEQUEUE: 1, layout.KEYINDEX: 4, layout.SNAPSHOTS: 1}
"""With how many times longer steps: files of blocks with a CRC each are alike all through, logs are long."""

Messages = dict[tuple[int, int], str]


@dataclass
class Before:
    """A store as it was written: its files, its records, and what a consumer reads of it."""

    shop: Any
    files: dict[str, bytes]
    records: list[FoundRecord]
    messages: Messages

    def flipped(self, path: str, bit: int) -> MemoryDisk:
        """A copy of the store with one bit flipped."""
        disk = MemoryDisk()
        for name, content in self.files.items():
            disk.write(name, 0, content)
            disk.sync(name)
        disk.flip_bit(path, bit)
        return disk

    def hit(self, path: str, bit: int) -> FoundRecord | None:
        """The record that a bit belongs to."""
        folder, _, name = path.partition("/")
        if folder != layout.COMMITLOG:
            return None
        offset = int(name) + bit // 8
        at = bisect_right(self.records, offset, key=lambda one: one.record.physical_offset) - 1
        one = self.records[at]
        return one if offset < one.record.physical_offset + one.record_bytes else None

    def reopened(self, disk: MemoryDisk) -> Broker:
        """A broker that starts on the store."""
        return Broker.open(disk, self.shop.settings, self.shop.now_ms)


def paths(disk: MemoryDisk, folder: str) -> Iterator[str]:
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if disk.size(path) < 0:
            yield from paths(disk, path)
        else:
            yield path


def messages(broker: Broker) -> Messages:
    """The id of each message that a consumer can read, by queue and queue offset."""
    return {
        (queue_id, one.queue_offset): one.message.message_id
        for queue_id in range(2)
        for one in broker.finding.read("orders", queue_id, 0, 1_000)
    }


def files_of(disk: MemoryDisk) -> dict[str, bytes]:
    names = [path for folder in (*FOLDERS, *TIMER_FOLDERS) for path in paths(disk, folder)]
    small = [path for path in disk.list("") if disk.size(path) >= 0]
    return {name: bytes(disk.view(name)) for name in names + small}


def before(shop: Any) -> Before:
    disk, files = shop.disk, files_of(shop.disk)
    records = list(LogScan(disk, shop.settings.segment_bytes))
    assert len(records) >= 200
    assert len(disk.list(layout.COMMITLOG)) == 3
    return Before(shop, files, records, messages(shop.broker))


def flip_each(before: Before, folder: str, step: int) -> None:
    """Flips every `step`th bit of the files of a folder, counted through all of them, and checks."""
    bit = 0
    for path in (path for path in before.files if path.startswith(f"{folder}/")):
        bits = len(before.files[path]) * 8
        for one in range(bit, bits, step):
            check(before, path, one)
        bit = (bit - bits) % step


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_flipped_bit_costs_at_most_the_record_that_it_hit(shop: Any, folder: str) -> None:
    flip_each(before(shop), folder, FOLDERS[folder] * BIT_STEP)


def test_nor_does_it_when_a_start_reads_the_whole_log(trade: Any) -> None:
    flip_each(before(trade(snapshots_after=())), layout.COMMITLOG, 7 * BIT_STEP)


def check(before: Before, path: str, bit: int) -> None:
    """Flips one bit and looks at the store as `verify` does, then as a start does."""
    where = f"{path} bit {bit}"
    hit = before.hit(path, bit)
    disk = before.flipped(path, bit)
    verdict = verify(look_at(disk, where), before.shop.now_ms)
    broker = before.reopened(disk)
    if path.startswith(f"{layout.CONSUMEQUEUE}/orders/") and not verdict.is_sound:
        with pytest.raises(StoreDamaged):
            messages(broker)
        assert [one.path for one in broker.damage] == [path], where
        broker = before.reopened(disk)
    left = {place: name for place, name in before.messages.items() if not is_of(hit, place)}
    read = messages(broker)
    assert left.items() <= read.items(), f"{where}: others than the hit are lost"
    assert read.items() <= before.messages.items(), f"{where}: a message that never was"
    assert verdict.record_count == len(before.records) - (hit is not None), f"{where}: records are lost"
    if hit is not None or not path.startswith(layout.COMMITLOG):
        assert verdict.findings, f"{where}: not told"
    assert hit is None or not verdict.is_sound, f"{where}: told as if it did no harm"


def is_of(hit: FoundRecord | None, place: tuple[int, int]) -> bool:
    if hit is None or hit.record.topic != "orders":
        return False
    return (hit.record.queue_id, hit.record.queue_offset) == place


@pytest.mark.parametrize("folder", TIMER_FOLDERS)
def test_a_flipped_bit_in_the_files_of_timers_is_told_and_costs_no_timer_that_the_log_has(
    timer_shop: Any, folder: str
) -> None:
    disk, files = timer_shop.disk, files_of(timer_shop.disk)
    before = Before(timer_shop, files, [], {})
    waiting = {one.timer_offset: one.message_id for one in fold(look_at(disk, "store"), 0).pending_timers()}
    assert len(waiting) > 15
    bit, flip_count = 0, 0
    for path in (path for path in files if path.startswith(f"{folder}/")):
        bits = len(files[path]) * 8
        for one in range(bit, bits, TIMER_FOLDERS[folder] * BIT_STEP):
            check_timers(before, waiting, path, one)
            flip_count += 1
        bit = (bit - bits) % BIT_STEP
    assert flip_count > 10


def check_timers(before: Before, waiting: dict[int, str], path: str, bit: int) -> None:
    """Flips one bit, looks at the store as `verify` does, then starts it and lets everything be delivered."""
    where = f"{path} bit {bit}"
    disk = before.flipped(path, bit)
    verdict = verify(look_at(disk, where), before.shop.now_ms)
    assert not verdict.is_sound, f"{where}: not told"
    shop = type(before.shop)(disk)
    delivered_before = delivered(shop.broker)
    shop.wait_until(before.shop.now_ms + 2 * max(shop.DELAYS_MS))
    now = delivered(shop.broker) - delivered_before
    assert now == Counter(waiting.values()), f"{where}: the log has all of them, and each comes once"


def delivered(broker: Broker) -> Counter[str]:
    """How often each message can be read."""
    found = [one for queue_id in range(2) for one in broker.finding.read("orders", queue_id, 0, 1_000)]
    assert all(one.message.body == b"x" + one.message.message_id.encode() for one in found)
    return Counter(one.message.message_id for one in found)
