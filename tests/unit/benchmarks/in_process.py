"""A broker of this process, as a load sees a server."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from commitlog import limits
from services.broker.spine.settings import BrokerSettings
from services.front.admission import Limits
from services.front.certificates import ensure_own_files, make_grpc_context_source
from services.front.connection import ServerState
from services.front.port import Port
from services.live.live_broker import LiveBroker
from services.rpc.clients.sessions import Sessions
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.serving import Serving
from services.rpc.serving.turns import CallScheduler
from services.rpc.wire.endpoints import Advertised
from tests.memory_disk import MemoryDisk

SETTINGS = BrokerSettings(segment_bytes=limits.SEGMENT_BYTES_SMALL, queue_count=8)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class InProcess:
    """A broker on a disk in memory behind a port, as the rows see a server."""

    name = "in process"

    def __init__(self, writer: ThreadPoolExecutor, certificates: Path) -> None:
        loop = asyncio.get_running_loop()
        self.observed: list[tuple[str, str]] = []
        self.live = LiveBroker(MemoryDisk(), SETTINGS, now_ms, loop.call_later, writer)
        self.sessions = Sessions(now_ms)
        rpcs = all_rpcs(self.live, self.sessions, Advertised("127.0.0.1", 8081, boot=0))
        shared = ServerState(Serving(rpcs, CallScheduler(self.live), self._observe))
        contexts = make_grpc_context_source(ensure_own_files(certificates, ["127.0.0.1"]))
        self.port = Port(shared, Limits(), "http://h", lambda *_: None, contexts)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"

    def _observe(self, rpc: str, code: str, seconds: float) -> None:
        self.observed.append((rpc, code))

    def make_topic(self, topic: str, message_type: str) -> None:
        """It makes itself."""

    def make_group(self, group: str) -> None:
        """It makes itself."""

    def processor_seconds(self) -> float:
        return time.process_time()

    def pending_timers(self) -> int:
        return self.live.core.gauges().pending_timers

    async def thaw(self) -> None:
        """It goes on all the time."""

    def freeze(self) -> None:
        """It goes on all the time."""


@asynccontextmanager
async def in_process(certificates: Path) -> AsyncIterator[InProcess]:
    with ThreadPoolExecutor(4) as writer:
        server = InProcess(writer, certificates)
        server.port.start(server.listening)
        try:
            yield server
        finally:
            server.live.receivers.close()
            server.sessions.close()
            await server.port.shut_down(1.0)
            await server.live.close()


Play = Callable[[Callable[[InProcess], Awaitable[None]]], None]
