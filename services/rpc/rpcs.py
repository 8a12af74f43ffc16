"""All RPCs of the gRPC port: messages and client metrics."""

from __future__ import annotations

from services.live.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.rpc.clients.clients import Clients
from services.rpc.clients.producers import Producers
from services.rpc.clients.questions import Questions
from services.rpc.clients.sessions import Sessions
from services.rpc.clients.settings import nowhere
from services.rpc.guard import Guard, guarded
from services.rpc.handlers.lite_receiving import LiteConsuming
from services.rpc.handlers.receiving import Consuming
from services.rpc.handlers.routing import Routing
from services.rpc.handlers.sending import Producing
from services.rpc.metrics.metrics_export import Exports, allow_all
from services.rpc.serving.service import Rpc, table
from services.rpc.wire.endpoints import Advertised


def all_rpcs(
    live: LiveBroker,
    sessions: Sessions,
    advertised: Advertised,
    guard: Guard | None = None,
    questions: Questions | None = None,
    metrics: ClientMetrics | None = None,
) -> dict[str, Rpc]:
    """Build the table of RPCs, with access control if a guard is given.

    `metrics` stores the metrics of clients.
    """
    questions = questions or Questions(sessions)
    producers = Producers(sessions, guard.may_end) if guard else Producers(sessions)
    may_name = guard.may_name if guard else allow_all
    exports = Exports(live, sessions, metrics, advertised, may_name) if metrics else None
    metric_for = exports.metric_for if exports else nowhere
    live.add_asker(producers.ask)
    producers.tell(live)
    sessions.room_with(producers.can_be_asked)
    live.access.set_rules_callback(producers.all_can_be_asked)
    live.transactions.set_producer_views(producers.views)
    live.set_present_clients(sessions.present)
    rpcs = table(
        Routing(live, sessions, advertised, producers),
        Producing(live, sessions, producers),
        Consuming(live, sessions),
        LiteConsuming(live, sessions),
        Clients(live, sessions, producers, questions, metric_for),
    )
    rpcs |= exports.table() if exports else {}
    return guarded(rpcs, guard) if guard else rpcs
