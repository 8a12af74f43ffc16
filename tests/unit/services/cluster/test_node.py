"""What a node tells of itself while it opens its copy again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NoReturn

from commitlog.message import Message
from services.broker.settings import BrokerSettings
from services.cluster.node import ClusterNode, Member, Role
from services.cluster.replica import Replica
from sharedlog.engine import Head, Stored
from sharedlog.engines import Beginning
from sharedlog.errors import Unknown
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
NOWHERE = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SETTINGS = BrokerSettings(segment_bytes=16 * 1024, queue_count=1, sync_flush=False)
WAIT_SECONDS = 30


class FailingEngine(MemoryEngine):
    """An engine whose reads fail on demand."""

    failure: Callable[[], Exception] | None = None

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if self.failure is not None:
            raise self.failure()
        return super().read(offset, bytes_max)


def engine_with_messages() -> tuple[FailingEngine, int]:
    """An engine into which another node has written; and where its log ends."""
    engine = FailingEngine(Random(1), NOWHERE)
    engine.is_well = True
    engine.found(encode(SharedRecord(CLUSTER, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS)))
    leader = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_on(leader, engine)
    facts = Member("b", "h:1", "http://h:2")._asdict()
    candidate = Candidate(leader.fold, b"who leads epoch1", facts)
    engine.append_if(NOWHERE, [encode(candidate.epoch)], Head(1, candidate.epoch.holder, NOWHERE.position))
    read_on(leader, engine)
    leader.lead(engine, 0, lambda: 0)
    leader.core.sending.send(Message(topic="t", body=b"x", message_id="M"), 0)
    while (one := leader.core.take_flush()) is not None:
        one.write()
        leader.core.flushed(one, 0)
    return engine, leader.fold.end


def read_on(replica: Replica, engine: MemoryEngine) -> None:
    while found := engine.read(replica.fold.next_offset, 1):
        for one in found:
            replica.take(one.offset, one.stored, 0)


def test_once_its_copy_is_opened_again_a_node_has_no_more_than_the_checkpoint() -> None:
    engine, end = engine_with_messages()
    assert end > 0

    async def until(is_so: Callable[[dict[str, Any]], bool], node: ClusterNode) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_so(node.view()):
                await asyncio.sleep(0)

    async def run() -> None:
        with ThreadPoolExecutor(4) as executor:
            me = Member("a", "h:3", "http://h:4")
            began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
            node = ClusterNode(me, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, never)
            running = asyncio.create_task(node.run())
            await until(lambda view: view["end_offset"] == end, node)
            engine.failure = OSError  # the copy is void
            await until(lambda view: view["role"] == Role.OPENING, node)
            engine.failure = lambda: Unknown("away")
            await until(lambda view: view["role"] == Role.FOLLOWING, node)
            assert node.view()["end_offset"] == node.view()["next_record"] == 0
            engine.failure = None
            await until(lambda view: view["end_offset"] == end, node)
            node.leave()
            await running

    asyncio.run(run())


def never(*_: Any) -> NoReturn:
    """Serve: a node that only follows is never asked to."""
    raise AssertionError("the node leads")
