"""All RPCs of the gRPC port: messages and client metrics."""

from __future__ import annotations

from services.live.clients.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.rpc.clients.clients import Clients
from services.rpc.clients.producers import Producers
from services.rpc.clients.questions import ClientQueries
from services.rpc.clients.sessions import Sessions
from services.rpc.clients.settings import nowhere
from services.rpc.guard import Guard, guarded
from services.rpc.handlers.lite_receiving import LiteHandlers
from services.rpc.handlers.receiving import ConsumerHandlers
from services.rpc.handlers.routing import RouteHandlers
from services.rpc.handlers.sending import ProducerHandlers
from services.rpc.metrics.metrics_export import MetricsExporter, allow_all
from services.rpc.serving.service import Rpc, table
from services.rpc.wire.endpoints import Advertised


def all_rpcs(
    live: LiveBroker,
    sessions: Sessions,
    advertised: Advertised,
    guard: Guard | None = None,
    questions: ClientQueries | None = None,
    metrics: ClientMetrics | None = None,
) -> dict[str, Rpc]:
    """Build the table of RPCs, with access control if a guard is given.

    `metrics` stores the metrics of clients.
    """
    questions = questions or ClientQueries(sessions)
    producers = Producers(sessions, guard.may_end) if guard else Producers(sessions)
    may_name = guard.may_name if guard else allow_all
    exports = MetricsExporter(live, sessions, metrics, advertised, may_name) if metrics else None
    metric_for = exports.metric_for if exports else nowhere
    live.add_check_back_sender(producers.ask)
    producers.tell(live)
    sessions.set_room(producers.can_be_asked)
    live.access.set_rules_callback(producers.all_can_be_asked)
    live.transactions.set_producer_views(producers.views)
    live.set_present_clients(sessions.present)
    rpcs = table(
        RouteHandlers(live, sessions, advertised, producers),
        ProducerHandlers(live, sessions, producers),
        ConsumerHandlers(live, sessions),
        LiteHandlers(live, sessions),
        Clients(live, sessions, producers, questions, metric_for),
    )
    rpcs |= exports.table() if exports else {}
    return guarded(rpcs, guard) if guard else rpcs
