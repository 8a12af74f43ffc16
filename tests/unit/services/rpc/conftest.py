"""The front without a transport: every RPC of the table over a real core on a disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from services.broker.spine.settings import BrokerSettings
from services.live.clients.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.service import Prompt, Streaming, Unary, reply_to, stream_to
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from tests.memory_disk import MemoryDisk
from tests.unit.services.rpc.answered import answered

SCENARIO_SECONDS = 30
NOW_MS = 1_763_700_000_000
SOMEBODY = Caller("client-1", language="PYTHON", version="5.1.2", seconds_left=0.6)


class Front:
    """The table of RPCs, a clock that stands still until it is moved, and calls that wait to be made."""

    def __init__(self, writer: ThreadPoolExecutor, settings: BrokerSettings) -> None:
        self.now_ms = NOW_MS
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.observed: list[tuple[str, str]] = []
        self.live = LiveBroker(MemoryDisk(), settings, lambda: self.now_ms, self._call_later, writer)
        self.sessions = Sessions(lambda: self.now_ms)
        self.measured = ClientMetrics(NOW_MS)
        self.rpcs = all_rpcs(
            self.live, self.sessions, Advertised("127.0.0.1", 8081, boot=0), metrics=self.measured
        )

    async def call(self, name: str, request: Any, caller: Caller = SOMEBODY) -> Any:
        """Call a unary RPC."""
        rpc = self.rpcs[name]
        if isinstance(rpc, Prompt):
            return await answered(self.live, name, rpc, request, caller, self._observe)
        assert isinstance(rpc, Unary)
        return await reply_to(name, rpc, request, caller, self._observe)

    def stream(self, name: str, request: Any, caller: Caller = SOMEBODY) -> AsyncIterator[Any]:
        """Call a streaming RPC."""
        rpc = self.rpcs[name]
        assert isinstance(rpc, Streaming)
        replies = stream_to(name, rpc, request, caller, self._observe)
        return parsed(rpc, replies) if name == "ReceiveMessage" else replies

    async def send(self, topic: str, body: bytes = b"x", **system: Any) -> Any:
        """Send one message and return the reply."""
        system.setdefault("message_id", f"ID-{body.decode()}")
        message = wire.Message(
            topic=wire.Resource(name=topic), body=body, system_properties=wire.SystemProperties(**system)
        )
        return await self.call("SendMessage", service.SendMessageRequest(messages=[message]))

    async def receive(self, topic: str, group: str = "g", **more: Any) -> list[Any]:
        """Receive and return the whole stream of replies."""
        request = service.ReceiveMessageRequest(
            group=wire.Resource(name=group),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
            batch_size=32,
            **more,
        )
        return [reply async for reply in self.stream("ReceiveMessage", request)]

    def pass_time(self, span_ms: int) -> None:
        """Move the clock, and make every call that waits, once."""
        self.now_ms += span_ms
        waiting, self.later = self.later, []
        for _, call in waiting:
            call()

    def _observe(self, rpc: str, code: str, seconds: float) -> None:
        self.observed.append((rpc, code))

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        planned = (seconds, call)
        self.later.append(planned)
        return Planned(self.later, planned)


async def parsed(rpc: Streaming, replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The replies of a stream as messages, whether they come so or in bytes."""
    async with aclosing(replies):
        async for reply in replies:
            yield rpc.reply.FromString(reply) if isinstance(reply, bytes) else reply


class Planned:
    """A call that waits to be made."""

    def __init__(self, later: list[Any], planned: Any) -> None:
        self._later, self._planned = later, planned

    def cancel(self) -> None:
        """Take it back."""
        if self._planned in self._later:
            self._later.remove(self._planned)


@pytest.fixture
def play() -> Callable[..., None]:
    """Run a scenario against a front of its own."""

    def run(scenario: Callable[[Front], Awaitable[None]], **settings: Any) -> None:
        async def on_stage() -> None:
            chosen = {"segment_bytes": 1 << 16, "invisible_ms_min": 0, **settings}
            with ThreadPoolExecutor(1) as writer:
                front = Front(writer, BrokerSettings(**chosen))
                await asyncio.wait_for(scenario(front), SCENARIO_SECONDS)
                await front.live.close()

        asyncio.run(on_stage())

    return run
