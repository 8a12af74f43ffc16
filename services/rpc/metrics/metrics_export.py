"""Clients' own metrics: where they are told to send them, and what is taken of what they send.

    Settings reply: metric.on, metric.endpoints --> client, every 60 s --> Export (OTLP, or OpenCensus' agent)

Rules:
- They are sent to the address that the client dialled, always in one spelling: Python's client begins anew
  with every other one, and its old exporter stays. `client_id` in what is sent says whose it is.
- Taken is what is of a client that is there or has just left, of topics and groups that exist, and, behind
  a guard, that its user has to do with; the reply says how many series were not.
- Python's client exports in plaintext, and signed, even if all else of it goes by TLS: then it is not asked.
- Behind a guard Go's client is not asked for any: it signs calls, but its export is a stream, which it does
  not sign. Python's signs once, when it starts to export (`services.rpc.guard`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Any, Final

from services.broker.spine.errors import TopicNotFound
from services.live.client_metrics import ClientMetrics, Key, ReportedSeries
from services.live.live_broker import LiveBroker
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.clients.settings import NO_METRICS
from services.rpc.generated import metrics_service_pb2 as otlp
from services.rpc.generated import opencensus_pb2 as opencensus
from services.rpc.generated.definition_pb2 import Metric, Resource, Settings
from services.rpc.metrics.export_formats import Exported, of_opencensus, of_otlp
from services.rpc.serving.service import Rpc, Streaming, Unary
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from services.rpc.wire.names import stored_name
from tidewheel.errors import ClientMistake

OTLP: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
OPENCENSUS: Final = "opencensus.proto.agent.metrics.v1.MetricsService/Export"
EXPORT_BYTES_MAX: Final = 512 * 1024
EXPORT_SERIES_MAX: Final = 4_096
"""What is beyond that is not looked at; a process of Go's sends what all its clients measured."""
LEFT_MAX: Final = 256
"""Clients that have left whose last export is waited for: they make it as they go."""
CANNOT_SIGN: Final = "GO"
CANNOT_ENCRYPT: Final = "PYTHON"
LEFT_OUT: Final = "Taken is what official clients measure, if client, topic and group are known here."

MayName = Callable[[str, Key], bool]
"""Whether a user has to do with the topic and the group of a series."""


def allow_all(user: str, key: Key) -> bool:
    """Let everybody say what it likes: what a broker does that asks nobody who it is."""
    return True


class Exports:
    """Takes clients' metrics, and tells them where to send them."""

    def __init__(
        self,
        live: LiveBroker,
        sessions: Sessions,
        metrics: ClientMetrics,
        advertised: Advertised,
        may_name: MayName = allow_all,
    ) -> None:
        self._live, self._sessions, self._metrics, self._advertised = live, sessions, metrics, advertised
        self._may_name = may_name
        self._left: dict[str, Session] = {}
        sessions.forget_with(self._leaves)

    def metric_for(self, described: Settings, session: Session) -> Metric:
        """Return where a client that describes itself so is to send its metrics."""
        is_unsigned = self._may_name is not allow_all and session.language == CANNOT_SIGN
        is_exposed = session.is_encrypted and session.language == CANNOT_ENCRYPT
        if is_unsigned or is_exposed:
            return NO_METRICS
        return Metric(on=True, endpoints=self._advertised.steady(described.access_point))

    def table(self) -> dict[str, Rpc]:
        """Return the RPCs that take metrics."""
        return {
            OTLP: Unary(
                otlp.ExportMetricsServiceRequest,
                otlp.ExportMetricsServiceResponse,
                self.export,
                has_status=False,
            ),
            OPENCENSUS: Streaming(
                opencensus.ExportMetricsServiceRequest,
                opencensus.ExportMetricsServiceResponse,
                self.export_to_agent,
                both_ways=True,
                has_status=False,
            ),
        }

    async def export(self, request: Any, caller: Caller) -> Any:
        """Take what an OTLP exporter sends."""
        left_out = self._take(request, of_otlp, caller)
        reply = otlp.ExportMetricsServiceResponse()
        if left_out:
            reply.partial_success.rejected_data_points = left_out
            reply.partial_success.error_message = LEFT_OUT
        return reply

    async def export_to_agent(
        self, requests: AsyncIterator[Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Take what an OpenCensus exporter sends, for as long as it does; nothing is ever replied."""
        async for request in requests:
            self._take(request, of_opencensus, caller)
        return
        yield  # it is a stream of replies, if of none

    def _take(self, request: Any, read: Callable[[Any], Iterable[Exported | None]], caller: Caller) -> int:
        """Take one request; return how many series of it were not taken."""
        if request.ByteSize() > EXPORT_BYTES_MAX:
            raise ClientMistake(
                f"Metrics of {request.ByteSize():,} B; at most {EXPORT_BYTES_MAX:,} are taken."
            )
        told: defaultdict[str, list[ReportedSeries]] = defaultdict(list)
        count = 0
        for one in islice(read(request), EXPORT_SERIES_MAX):
            count += 1
            if one is not None and (found := self._session(one, caller)) is not None:
                reported = self._reported(one, found)
                if self._exists(reported.key) and self._may_name(caller.user, reported.key):
                    told[found.client_id].append(reported)
        return count - sum(self._report(client_id, series) for client_id, series in told.items())

    def _report(self, client_id: str, series: list[ReportedSeries]) -> int:
        is_there = self._sessions.find(client_id) is not None
        return self._metrics.report(client_id, series, is_there=is_there)

    def _session(self, one: Exported, caller: Caller) -> Session | None:
        """Return the client that is meant: one of the caller's own user."""
        client_id = f"{caller.user}/{one.client_id}" if caller.user else one.client_id
        return self._sessions.find(client_id) or self._left.get(client_id)

    def _leaves(self, session: Session) -> None:
        """Forget a client, but for what it may still have to tell."""
        self._metrics.keep_departed(session.client_id)
        self._left.pop(session.client_id, None)
        self._left[session.client_id] = session
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    @staticmethod
    def _reported(one: Exported, session: Session) -> ReportedSeries:
        topic, group = (
            stored_name(Resource(resource_namespace=session.namespace, name=name)) if name else ""
            for name in (one.topic, one.group)
        )
        return ReportedSeries(Key(one.name, topic, group, one.status), one.value, one.began_ms, one.is_new)

    def _exists(self, key: Key) -> bool:
        """Return whether there is such a topic, and such a group that receives it."""
        if key.group:
            return self._live.core.groups.is_subscribed(key.group, key.topic)
        try:
            self._live.core.topics.get(key.topic)
        except TopicNotFound:
            return False
        return True
