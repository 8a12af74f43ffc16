"""What operators ask about clients: a part of `services.rpc.admin`.

A client is asked, or told of, only in its own group: the right to that group is what its operator has.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from services.broker.errors import MessageNotFound
from services.live.client_metrics import ClientMetrics, Spread
from services.live.clients import unknown
from services.live.live_broker import LiveBroker
from services.rpc.admin_groups import client_info, subscribed
from services.rpc.caller import Caller
from services.rpc.generated import admin_pb2 as wire
from services.rpc.generated.definition_pb2 import Status
from services.rpc.names import stored_name, wire_name
from services.rpc.questions import Questions, kind_of
from services.rpc.sessions import Session, Sessions
from services.rpc.statuses import OK

SECONDS_MIN = 1.0


class AdminClients:
    """Answers about clients, and has them answer."""

    def __init__(
        self, live: LiveBroker, sessions: Sessions, questions: Questions, measured: ClientMetrics
    ) -> None:
        self._live, self._sessions, self._questions, self._measured = live, sessions, questions, measured
        self._rates = Rates(time.monotonic())

    async def list_connections(self, request: Any, caller: Caller) -> Any:
        """Return the consumers of a group, or those of them that subscribe a topic."""
        group, topic = stored_name(request.group), stored_name(request.topic)
        found = [
            client_info(one)
            for one in sorted(self._sessions, key=lambda one: one.client_id)
            if group and one.group == group and not one.is_producer
            if not topic or topic in dict(subscribed(one))
        ]
        return wire.ListConsumerConnectionResponse(status=OK, client_info=found)

    async def print_stack(self, request: Any, caller: Caller) -> Any:
        """Ask a client what its threads do; a producer has no group."""
        session = self._session(request)
        stack = await self._questions.stack(session.client_id)
        return wire.PrintThreadStackTraceResponse(status=OK, thread_stack_trace=stack)

    async def verify_message(self, request: Any, caller: Caller) -> Any:
        """Have a push consumer consume a message once more; the status is what its listener made of it."""
        session, topic = self._consumer(request), stored_name(request.topic)
        self._live.core.topics.get(topic)
        found = self._live.find(
            topic, request.message_id, 1, lambda one: bool(one.stored_topic == topic)
        ).messages
        if not found:
            raise MessageNotFound(f"{topic} has no message {request.message_id[:255]!r}.")
        code = await self._questions.verify(session.client_id, found[0])
        return wire.VerifyMessageResponse(status=Status(code=code, message=code))

    async def running_info(self, request: Any, caller: Caller) -> Any:
        """Say what is known of a consumer: itself, its subscriptions, what it measured."""
        session = self._consumer(request)
        info = wire.ConsumerRunningInfo(
            properties={
                "client_type": kind_of(session),
                "language": session.language,
                "version": session.version,
                "open_receives": str(session.receives),
            },
            consume_status_table=self._statuses(session),
        )
        for topic, expression in subscribed(session):
            info.subscriptions[wire_name(topic, session.namespace).name].CopyFrom(expression)
        return wire.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info)

    async def runtime_stats(self, request: Any, caller: Caller) -> Any:
        """Say who is connected, and how much goes through since this was asked last."""
        statistics = self._live.core.statistics
        stored_count = sum(one.messages for one in statistics.stored.values())
        totals = stored_count, statistics.messages_out.total()
        in_tps, out_tps = self._rates.now(time.monotonic(), totals)
        sessions = list(self._sessions)
        producers = sum(one.is_producer for one in sessions)
        return wire.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._live.settings.broker_name,
            version=version("tidewheel"),
            in_tps=in_tps,
            out_tps=out_tps,
            connections=sum(one.is_connected for one in sessions),
            producers=producers,
            consumers=sum(bool(one.group) and not one.is_producer for one in sessions),
        )

    def _session(self, request: Any) -> Session:
        """Return the client that is meant, if it is of the group that is named; raise `ClientNotFound`."""
        session = self._sessions.find(request.client_id)
        if session is None or session.group != stored_name(request.group):
            raise unknown(request.client_id)
        return session

    def _consumer(self, request: Any) -> Session:
        """Likewise; a client without a group is none."""
        session = self._session(request)
        if not session.group:
            raise unknown(request.client_id)
        return session

    def _statuses(self, session: Session) -> dict[str, Any]:
        """Return what a consumer measured, by topic: mean times in milliseconds, and failures."""
        statuses: dict[str, Any] = {}
        for key, value in self._measured.of(session.client_id).items():
            if not isinstance(value, Spread) or not value.count:
                continue
            status = statuses.setdefault(wire_name(key.topic, session.namespace).name, wire.ConsumeStatus())
            mean_ms = value.total_ms / value.count
            match key.name, key.status:
                case "rocketmq_delivery_latency", _:
                    status.receive_rt = mean_ms
                case "rocketmq_process_time", "success":
                    status.consume_rt = mean_ms
                case "rocketmq_process_time", "failure":
                    status.consume_failed_msgs = value.count
        return statuses


class Rates:
    """How fast two totals grow, from one question to the next that comes a second later or more."""

    def __init__(self, began: float) -> None:
        self._asked, self._totals, self._rates = began, (0, 0), (0.0, 0.0)

    def now(self, asked: float, totals: tuple[int, int]) -> tuple[float, float]:
        """Return the rates since the question before; what was told then if that was just now."""
        seconds = asked - self._asked
        if seconds >= SECONDS_MIN:
            before, self._asked, self._totals = self._totals, asked, totals
            self._rates = (totals[0] - before[0]) / seconds, (totals[1] - before[1]) / seconds
        return self._rates
