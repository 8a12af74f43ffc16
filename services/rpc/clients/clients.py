"""Telemetry, Heartbeat, NotifyClientTermination: the life cycle of clients.

A client whose process crashes loses its connections. If a stream or receive of a client breaks and no call
arrives within `LEAVE_AFTER_SECONDS`, the client is removed and its leases are released. A client that only
lost its connection calls again in time, because official clients reconnect after one second.

While a client is connected, its auto-renewed leases are renewed, independently of its heartbeats. A dead
connection is detected by pings within 45 s (`services.front.connection`). Pings are answered even by a
process whose listeners occupy all threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import structlog

from services.auth.rights import Kind, Need, Verb
from services.live.live_broker import LiveBroker
from services.rpc.clients import settings
from services.rpc.clients.producers import Producers
from services.rpc.clients.questions import ClientQueries
from services.rpc.clients.session import Session, Stream
from services.rpc.clients.sessions import Sessions
from services.rpc.clients.settings import MetricFor, check_names, nowhere
from services.rpc.generated.definition_pb2 import Settings
from services.rpc.generated.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    TelemetryCommand,
)
from services.rpc.wire.caller import Caller
from services.rpc.wire.filters import wanted
from services.rpc.wire.names import stored_name
from services.rpc.wire.statuses import OK, refusal
from tidewheel.errors import TidewheelError

LEAVE_AFTER_SECONDS = 2.0
GOODBYE_SECONDS = 0.5
RENEWALS_PER_LEASE = 3
SUBSCRIPTIONS_NOTED_MAX: Final = 16

log = structlog.get_logger()


class Clients:
    """Keeps track of connected clients."""

    def __init__(
        self,
        live: LiveBroker,
        sessions: Sessions,
        producers: Producers,
        questions: ClientQueries | None = None,
        metric_for: MetricFor = nowhere,
    ) -> None:
        self._live, self._sessions, self._producers = live, sessions, producers
        self._questions = questions or ClientQueries(sessions)
        self._metric_for = metric_for
        self._renew_seconds = live.settings.auto_renew_lease_ms / 1000 / RENEWALS_PER_LEASE
        self._is_renewing = False
        sessions.set_watch_callback(self._watch)
        live.access.set_dismiss_callback(self._dismiss)

    async def telemetry(
        self, commands: AsyncIterator[TelemetryCommand], caller: Caller
    ) -> AsyncGenerator[TelemetryCommand, None]:
        """Read a client's settings and answers, and write commands to it, until its stream ends."""
        stream = self._sessions.open_stream(caller)
        self._renew_later()
        reader = asyncio.create_task(self._read(commands, stream))
        try:
            while (command := await stream.next()) is not None:
                yield command
        finally:
            reader.cancel()
            self._sessions.close_stream(stream)

    async def heartbeat(self, request: HeartbeatRequest, caller: Caller) -> HeartbeatResponse:
        """Record that a client is alive. A client that is unknown after a broker restart is added.

        The heartbeat only sets missing values, because settings are more complete, and Java clients before
        5.0.4 omit their type.
        """
        session = self._sessions.seen(caller)
        session.client_type = session.client_type or request.client_type
        session.group = session.group or stored_name(request.group)
        self._live.receivers.renew_client_leases(caller.client_id)
        return HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, request: NotifyClientTerminationRequest, caller: Caller
    ) -> NotifyClientTerminationResponse:
        """Remove a client: release its leases and remove its subscriptions."""
        streams = self._farewell(self._sessions.find(caller.client_id))
        self._leave(caller.client_id, said_goodbye=True)
        self._live.receivers.remove_subscriptions(caller.client_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                for stream in streams:
                    await stream.ended.wait()
        return NotifyClientTerminationResponse(status=OK)

    async def _read(self, commands: AsyncIterator[TelemetryCommand], stream: Stream) -> None:
        try:
            async for command in commands:
                if stream.is_over:
                    return
                if command.HasField("settings"):
                    # otherwise Python's client would not send them again for ten minutes
                    await self._live.wait_until_available()
                    self._introduce(command.settings, stream)
                else:
                    self._questions.answered(command, stream.session)
        except TidewheelError as error:
            stream.write(TelemetryCommand(status=refusal(error)))
        finally:
            stream.write(None)

    def _introduce(self, described: Settings, stream: Stream) -> None:
        session = stream.session
        check_names(described)
        if session.client_type != described.client_type:
            log.info("client came", client=session.client_id, language=session.language)
        session.describe(described)
        for topic in described.publishing.topics:
            self._producers.add(stored_name(topic), session.client_id, topic.resource_namespace)
        asked_for, session.asked_for = session.asked_for, {}
        if session.is_producer:
            for name, namespace in asked_for.items():
                self._producers.add(name, session.client_id, namespace)
        self._note_filters(described, session)
        stream.write(settings.answer(described, self._live, self._metric_for(described, session)))
        self._producers.can_be_asked(session)

    def _note_filters(self, described: Settings, session: Session) -> None:
        """Register the subscriptions of a client that has not received since the broker started.

        One filter per topic is registered, for up to `SUBSCRIPTIONS_NOTED_MAX` topics. Errors in a filter are
        reported by the receive.
        """
        access, group = self._live.access, session.group
        found = {stored_name(one.topic): one.expression for one in described.subscription.subscriptions}
        for topic, expression in islice(found.items(), SUBSCRIPTIONS_NOTED_MAX):
            needs = Need(Verb.RECEIVE, Kind.TOPIC, topic), Need(Verb.RECEIVE, Kind.GROUP, group)
            if access.is_asked and not all(access.allows(session.user, need) for need in needs):
                continue
            with suppress(TidewheelError):
                self._live.receivers.record_subscription(session.client_id, group, topic, wanted(expression))

    def _farewell(self, session: Session | None) -> list[Stream]:
        """Disable the metrics of a client that terminates.

        Returns the streams that must end before the reply.

        Python's client does not stop its exporter, which would delay the end of its process by seconds after
        the client is removed. When its metrics are disabled, it immediately exports the remaining values.
        """
        if session is None or session.described is None:
            return []
        if not self._metric_for(session.described, session).on:
            return []
        for stream in session.streams:
            stream.write(settings.answer(session.described, self._live))
        return list(session.streams)

    def _renew_later(self) -> None:
        if not self._is_renewing:
            self._is_renewing = True
            self._live.schedule_call(self._renew_seconds, self._renew)

    def _renew(self) -> None:
        """Renew the leases of connected clients, and schedule the next renewal if there are any."""
        self._is_renewing = False
        connected = [session for session in self._sessions if session.is_connected]
        for session in connected:
            self._live.receivers.renew_client_leases(session.client_id)
        if connected:
            self._renew_later()

    def _watch(self, session: Session) -> None:
        """Schedule a check whether a disconnected client has returned."""
        leaves = partial(self._leave_unless_back, session.client_id, self._sessions.counted_ms())
        self._live.schedule_call(LEAVE_AFTER_SECONDS, leaves)

    def _leave_unless_back(self, client_id: str, since_ms: float) -> None:
        session = self._sessions.find(client_id)
        if session is not None and session.absent_since(since_ms):
            self._leave(client_id)

    def _dismiss(self, user: str) -> None:
        """Disconnect all clients of a user whose secret was changed or removed.

        Clients with the new secret reconnect.
        """
        for session in self._sessions:
            if session.user == user:
                self._leave(session.client_id)

    def _leave(self, client_id: str, *, said_goodbye: bool = False) -> None:
        self._sessions.gone(client_id, said_goodbye=said_goodbye)
        self._live.receivers.release_client_leases(client_id)
        log.info("client left", client=client_id)
