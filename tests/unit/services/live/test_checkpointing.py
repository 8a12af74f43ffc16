"""Sends, and a flush that fails, while a checkpoint is taken and written."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import EIO
from threading import Event, get_ident
from typing import Any

import pytest
from structlog.testing import capture_logs

from commitlog import limits
from commitlog.layout import CONSUMEQUEUE, DURABLE, SNAPSHOTS
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.checkpoint import Checkpoint
from services.broker.spine.settings import BrokerSettings
from services.live import flushing
from services.live.errors import ResultUnknown, StoreUnavailable
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000


class SlowSnapshots(MemoryDisk):
    """A disk on which a snapshot takes until it is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.allowed = Event(), Event()
        self.fails_then = False

    def rename(self, path: str, new_path: str) -> None:
        if new_path.startswith(SNAPSHOTS):
            self.begun.set()
            assert self.allowed.wait(60)
            if self.fails_then:
                self.fails_then = False
                raise OSError(EIO, "Input/output error", new_path)
        super().rename(path, new_path)


def message(message_id: str) -> Message:
    return Message(topic="t", body=b"x", message_id=message_id, keys=("k",))


@pytest.mark.parametrize("fails", [False, True])
def test_a_core_is_not_rebuilt_under_a_checkpoint(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """What becomes of that checkpoint is told, though nothing of the void core needs it."""
    unheard: list[dict[str, Any]] = []
    monkeypatch.setattr(limits, "SNAPSHOT_LOG_BYTES", 1)

    async def run(disk: SlowSnapshots, threads: ThreadPoolExecutor) -> None:
        call_later = asyncio.get_running_loop().call_later
        live = LiveBroker(disk, BrokerSettings(segment_bytes=1 << 16), lambda: NOW_MS, call_later, threads)
        core = live.core
        await live.send(message("kept"))
        await asyncio.to_thread(disk.begun.wait)
        disk.failing_syncs, disk.fails_then = 1, fails
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        unknown = asyncio.create_task(live.send(message("unknown")))
        while disk.failing_syncs:
            await asyncio.sleep(0)
        await asyncio.to_thread(int)
        with pytest.raises(ResultUnknown):
            await unknown
        with pytest.raises(StoreUnavailable):
            _ = live.core
        disk.allowed.set()
        await live.wait_until_available()
        assert live.core is not core
        assert [one.message.message_id for one in live.core.finding.find("t", "k", 9).messages] == ["kept"]
        await live.close()

    with ThreadPoolExecutor(2) as threads, capture_logs() as logged:
        asyncio.run(run(SlowSnapshots(), threads))
    gc.collect()  # what nobody has heard is told when it goes
    assert unheard == []
    assert [one["event"] for one in logged].count("no snapshot was written") == fails


def test_messages_are_stored_while_the_rows_of_a_checkpoint_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is of its moment: a start from it reads what came meanwhile from the log, each message once."""
    monkeypatch.setattr(flushing, "ROWS_PER_TURN", 1)
    topics, settings = [f"t{number}" for number in range(40)], BrokerSettings(segment_bytes=1 << 20)

    async def run(disk: MemoryDisk, threads: ThreadPoolExecutor) -> None:
        call_later = asyncio.get_running_loop().call_later
        live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, threads)
        for topic in topics:
            await live.send(replace(message("before"), topic=topic))
        taken = []
        take = Checkpoint.take
        monkeypatch.setattr(Checkpoint, "take", lambda one, count: taken.append(one) or take(one, count))
        live.core.request_checkpoint()
        sent: list[Any] = []
        while not snapshot.offsets(disk):
            sent += [await live.send(replace(message(f"M{len(sent)}"), topic=topics[-1]))]
        assert len(taken) > len(topics)
        assert live.core.durable_offset > snapshot.offsets(disk)[-1], "nothing was sent meanwhile"
        await live._flushing.idle()
        disk.crash(lambda count: 0)
        again = Broker.open(disk, settings, NOW_MS)
        assert again.rebuilt_files == []
        wanted = dict.fromkeys(topics, 1) | {topics[-1]: 1 + len(sent)}
        found = {topic: len(again.finding.find(topic, "k", 99).messages) for topic in topics}
        assert found == wanted
        entry_count = sum(queue.end_offset for _, _, queue in again.store.dispatch.queues())
        assert entry_count == sum(wanted.values())

    with ThreadPoolExecutor(2) as threads:
        asyncio.run(run(MemoryDisk(), threads))


class NotedEntries(MemoryDisk):
    """A disk that notes when the entries of a queue are written, and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.writers = Event(), set[int]()

    def write(self, path: str, position: int, data: bytes) -> None:
        super().write(path, position, data)
        if path.startswith((CONSUMEQUEUE, DURABLE)):
            self.writers.add(get_ident())
        if path.startswith(CONSUMEQUEUE):
            self.written.set()


def test_entries_for_which_no_flush_comes_are_written_alone_and_never_by_the_loop() -> None:
    async def run(disk: NotedEntries, threads: ThreadPoolExecutor) -> None:
        call_later = asyncio.get_running_loop().call_later
        settings = BrokerSettings(segment_bytes=1 << 16, tail_entries_max=1)
        live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, threads)
        await live.call(live.core.topics.get_or_create, "t")
        disk.writers.clear()
        disk.written.clear()
        await live.send(message("one"))
        assert await asyncio.to_thread(disk.written.wait, 10)
        assert disk.writers
        assert get_ident() not in disk.writers
        await live._flushing.idle()
        assert live.core.take_entries() is None
        await live.close()

    with ThreadPoolExecutor(2) as threads:
        asyncio.run(run(NotedEntries(), threads))
