"""The clock is set while the store is opened again: a suspended machine wakes with a bad disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog import limits
from commitlog.records.message import Message, MessageType
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Subscriber
from services.live.errors import ResultUnknown
from services.live.live_broker import LiveBroker
from tests.unit.services.live.failing_disk import FailingDisk, Pauses, failing

NOW_MS, HOUR_MS = 1_763_700_000_000, 3_600_000
CLIENT = Subscriber("g", "l", "c")


class Away:
    """A broker of one client with a lite topic, whose clock is set while its disk fails."""

    def __init__(self, writer: ThreadPoolExecutor) -> None:
        self.disk, self.pauses, self.wall_ms, self.counted_ms = FailingDisk(), Pauses(), NOW_MS, 7_000.0
        settings = BrokerSettings(segment_bytes=1 << 16, queue_count=1)
        self.live = LiveBroker(
            self.disk,
            settings,
            lambda: self.wall_ms,
            self.pauses,
            writer,
            counted_ms=lambda: self.counted_ms,
        )

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.counted_ms += ms

    async def fails(self, step_ms: int, away_ms: int) -> None:
        """Fail the disk, set the clock before and after an attempt to open it again, and heal it."""
        self.disk.fails = failing("write", "sync", "read", "allocate")
        with pytest.raises(ResultUnknown):
            await self.live.send(Message(topic="t", body=b"x", message_id="M1"))
        self.wall_ms += step_ms
        while not self.pauses.planned:  # the first attempt to open it has failed
            await asyncio.sleep(0.001)
        self.wall_ms += step_ms
        self.passes(away_ms)
        self.disk.heal()
        self.pauses.pass_by()
        while self.live._core is None:
            await asyncio.sleep(0.001)

    def is_known(self) -> bool:
        self.live.core.lite.run_maintenance(self.live.clock.now_ms())
        return self.live.core.lite.lite_topics_of(CLIENT) == ["x"]


@pytest.mark.parametrize("step_ms", [0, HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("times", [1, 2])
def test_a_client_is_silent_for_elapsed_time_over_a_disk_that_failed(step_ms: int, times: int) -> None:
    """A step between two cores ended the subscriptions of all clients, or kept them for as long."""

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as writer:
            away = Away(writer)
            await away.live.call(away.live.core.topics.create, "l", MessageType.LITE, 1)
            away.wall_ms += 2 * step_ms  # told to the first core
            await away.live.call(away.live.core.lite.subscribe, CLIENT, ["x"], LiteStart())
            away.passes(20_000)
            for _ in range(times):
                await away.fails(step_ms, 5_000)
            away.wall_ms += step_ms
            silent_ms = 20_000 + times * 5_000
            away.passes(limits.LITE_SILENT_MS_MAX - silent_ms)
            assert away.is_known()
            away.passes(100)
            assert not away.is_known()
            await away.live.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
