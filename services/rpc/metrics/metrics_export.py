"""Client metrics: the address to which clients export them, and their validation.

    Settings reply: metric.on, metric.endpoints --> client, every 60 s --> Export (OTLP, or OpenCensus' agent)

Rules:
- Clients export to the address that they dialled, always in the same spelling. Python's client would start
  another exporter for each new spelling and keep the old one. The attribute `client_id` identifies the
  client.
- A series is accepted if its client is connected or has just left, its topic and group exist, and, with
  access control, its user has a right on them. The reply contains the number of rejected series.
- Python's client exports in plaintext with a signature, even if it uses TLS otherwise. In this case its
  metrics are disabled.
- With access control, the metrics of Go's client are disabled, because its export is a stream, which it does
  not sign. Python's client signs once, when it begins to export (`services.rpc.guard`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Any, Final

from services.broker.spine.errors import TopicNotFound
from services.live.clients.client_metrics import ClientMetrics, Key, ReportedSeries
from services.live.live_broker import LiveBroker
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.clients.settings import NO_METRICS
from services.rpc.generated import metrics_service_pb2 as otlp
from services.rpc.generated import opencensus_pb2 as opencensus
from services.rpc.generated.definition_pb2 import Metric, Resource, Settings
from services.rpc.metrics.export_formats import ExportedSeries, of_opencensus, of_otlp
from services.rpc.serving.service import Rpc, Streaming, Unary
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from services.rpc.wire.names import stored_name
from tidewheel.errors import ClientMistake

OTLP: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
OPENCENSUS: Final = "opencensus.proto.agent.metrics.v1.MetricsService/Export"
EXPORT_BYTES_MAX: Final = 512 * 1024
EXPORT_SERIES_MAX: Final = 4_096
"""Further series are ignored. A Go process exports the metrics of all its clients together."""
LEFT_MAX: Final = 256
"""Maximum number of departed clients whose last export is accepted. They send it while they terminate."""
CANNOT_SIGN: Final = "GO"
CANNOT_ENCRYPT: Final = "PYTHON"
UNSUPPORTED_METRICS: Final = (
    "Taken is what official clients measure, if client, topic and group are known here."
)

MayName = Callable[[str, Key], bool]
"""Returns whether a user has a right on the topic and the group of a series."""


def allow_all(user: str, key: Key) -> bool:
    """Allow every user to export every series, for a broker without access control."""
    return True


class MetricsExporter:
    """Accepts client metrics, and tells clients where to export them."""

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
        sessions.set_forget_callback(self._leaves)

    def metric_for(self, described: Settings, session: Session) -> Metric:
        """Return the metrics setting for a client."""
        is_unsigned = self._may_name is not allow_all and session.language == CANNOT_SIGN
        is_exposed = session.is_encrypted and session.language == CANNOT_ENCRYPT
        if is_unsigned or is_exposed:
            return NO_METRICS
        return Metric(on=True, endpoints=self._advertised.steady(described.access_point))

    def table(self) -> dict[str, Rpc]:
        """Return the RPCs that accept metrics."""
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
        """Accept an OTLP export."""
        left_out = self._take(request, of_otlp, caller)
        reply = otlp.ExportMetricsServiceResponse()
        if left_out:
            reply.partial_success.rejected_data_points = left_out
            reply.partial_success.error_message = UNSUPPORTED_METRICS
        return reply

    async def export_to_agent(
        self, requests: AsyncIterator[Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Accept an OpenCensus stream until it ends. No replies are sent."""
        async for request in requests:
            self._take(request, of_opencensus, caller)
        return
        yield  # makes this function a generator

    def _take(
        self, request: Any, read: Callable[[Any], Iterable[ExportedSeries | None]], caller: Caller
    ) -> int:
        """Process one request. Returns the number of rejected series."""
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

    def _session(self, one: ExportedSeries, caller: Caller) -> Session | None:
        """Return the session of the exporting client, which must belong to the caller's user."""
        client_id = f"{caller.user}/{one.client_id}" if caller.user else one.client_id
        return self._sessions.find(client_id) or self._left.get(client_id)

    def _leaves(self, session: Session) -> None:
        """Keep a departed client for its last export."""
        self._metrics.retain_last_report(session.client_id)
        self._left.pop(session.client_id, None)
        self._left[session.client_id] = session
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    @staticmethod
    def _reported(one: ExportedSeries, session: Session) -> ReportedSeries:
        topic, group = (
            stored_name(Resource(resource_namespace=session.namespace, name=name)) if name else ""
            for name in (one.topic, one.group)
        )
        return ReportedSeries(Key(one.name, topic, group, one.status), one.value, one.began_ms, one.is_new)

    def _exists(self, key: Key) -> bool:
        """Return whether the topic exists and is received by the group."""
        if key.group:
            return self._live.core.groups.is_subscribed(key.group, key.topic)
        try:
            self._live.core.topics.get(key.topic)
        except TopicNotFound:
            return False
        return True
