"""Telemetry, Heartbeat, NotifyClientTermination: how clients come, stay and go.

A client that leaves without a word (its process died) takes its connections with it. When its last stream
ends and nothing at all is heard of it for `LEAVE_AFTER_SECONDS`, it is gone, and its leases are free for
others; a client that only lost a connection has called again by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

import structlog

from services.live.live_broker import LiveBroker
from services.rpc import settings
from services.rpc.caller import Caller
from services.rpc.generated.definition_pb2 import Settings
from services.rpc.generated.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    TelemetryCommand,
)
from services.rpc.names import stored_name
from services.rpc.producers import Producers
from services.rpc.sessions import Sessions, Stream
from services.rpc.statuses import OK

LEAVE_AFTER_SECONDS = 5.0

log = structlog.get_logger()


class Clients:
    """Keeps track of who is there."""

    def __init__(self, live: LiveBroker, sessions: Sessions, producers: Producers) -> None:
        self._live, self._sessions, self._producers = live, sessions, producers

    async def telemetry(
        self, commands: AsyncIterator[TelemetryCommand], caller: Caller
    ) -> AsyncGenerator[TelemetryCommand, None]:
        """Read a client's settings and write what it is asked, for as long as its stream lives."""
        stream = self._sessions.open_stream(caller)
        reader = asyncio.create_task(self._read(commands, stream))
        try:
            while (command := await stream.next()) is not None:
                yield command
        finally:
            reader.cancel()
            self._close(stream)

    async def heartbeat(self, request: HeartbeatRequest, caller: Caller) -> HeartbeatResponse:
        """Note that a client is alive; a client we do not know (we restarted) is welcome too."""
        session = self._sessions.seen(caller)
        session.client_type = request.client_type
        session.group = stored_name(request.group)
        self._live.client_alive(caller.client_id)
        return HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, request: NotifyClientTerminationRequest, caller: Caller
    ) -> NotifyClientTerminationResponse:
        """Say goodbye to a client: its leases are free at once."""
        self._leave(caller.client_id)
        return NotifyClientTerminationResponse(status=OK)

    async def _read(self, commands: AsyncIterator[TelemetryCommand], stream: Stream) -> None:
        try:
            async for command in commands:
                if command.HasField("settings"):
                    self._introduce(command.settings, stream)
        finally:
            stream.write(None)

    def _introduce(self, described: Settings, stream: Stream) -> None:
        session = stream.session
        if session.client_type != described.client_type:
            log.info("client came", client=session.client_id, language=session.language)
        session.describe(described)
        for topic in described.publishing.topics:
            self._producers.add(stored_name(topic), session.client_id, topic.resource_namespace)
        stream.write(settings.answer(described, self._live))

    def _close(self, stream: Stream) -> None:
        self._sessions.close_stream(stream)
        leaves = partial(self._leave_unless_back, stream.session.client_id, self._live.now_ms())
        self._live.later(LEAVE_AFTER_SECONDS, leaves)

    def _leave_unless_back(self, client_id: str, since_ms: int) -> None:
        session = self._sessions.find(client_id)
        if session is not None and session.absent_since(since_ms):
            self._leave(client_id)

    def _leave(self, client_id: str) -> None:
        self._sessions.gone(client_id)
        self._live.client_gone(client_id)
        log.info("client left", client=client_id)
