"""RocketMQ's Admin service, as far as this broker has the answers: operators' questions over the protocol.

| RPC | |
|---|---|
| DescribeTopicStatus, GetTopicRoute, QueryMessage, AdminSendMessage | `services.rpc.admin_topics` |
| ListSubscription, DescribeSubscription, DeleteSubscription, DescribeGroupAccumulation, QueryTimeSpan,
  ResetGroupOffset | `services.rpc.admin_groups` |
| ListConsumerConnection, PrintThreadStackTrace, VerifyMessage, GetConsumerRunningInfo, GetProxyRuntimeStats |
  `services.rpc.admin_clients` |
| ChangeLogLevel | the broker has one level: its remark says so |

They take the right `admin` on what topics and groups they name (`services.rpc.needs`), and no client id.
They pay no heed to a deployment's name: there is one. What is not known is left empty, never made up. A
parameter that asks for what the broker has not is answered NOT_IMPLEMENTED.
"""

from __future__ import annotations

from typing import Any, Final

from services.live.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.rpc.admin_clients import AdminClients
from services.rpc.admin_groups import AdminGroups
from services.rpc.admin_topics import AdminTopics
from services.rpc.caller import Caller
from services.rpc.endpoints import Advertised
from services.rpc.generated import admin_pb2 as wire
from services.rpc.questions import Questions
from services.rpc.service import ADMIN, Rpc, Unary
from services.rpc.sessions import Sessions

METHODS: Final = wire.DESCRIPTOR.services_by_name["Admin"].methods_by_name
ONE_LEVEL: Final = "This broker logs on one level only: the level stays as it is."


def admin_table(
    live: LiveBroker,
    sessions: Sessions,
    advertised: Advertised,
    questions: Questions,
    measured: ClientMetrics,
) -> dict[str, Rpc]:
    """Return the RPCs of operators, by their full names."""
    topics, groups = AdminTopics(live, advertised), AdminGroups(live, sessions)
    clients = AdminClients(live, sessions, questions, measured)
    handlers = {
        "ChangeLogLevel": change_log_level,
        "DescribeTopicStatus": topics.describe_status,
        "GetTopicRoute": topics.route,
        "QueryMessage": topics.query_message,
        "AdminSendMessage": topics.send_message,
        "ListSubscription": groups.list_subscription,
        "DescribeSubscription": groups.describe_subscription,
        "DeleteSubscription": groups.delete_subscription,
        "DescribeGroupAccumulation": groups.describe_accumulation,
        "QueryTimeSpan": groups.query_time_span,
        "ResetGroupOffset": groups.reset_offset,
        "ListConsumerConnection": clients.list_connections,
        "PrintThreadStackTrace": clients.print_stack,
        "VerifyMessage": clients.verify_message,
        "GetConsumerRunningInfo": clients.running_info,
        "GetProxyRuntimeStats": clients.runtime_stats,
    }
    return {f"{ADMIN}/{name}": rpc(name, handler) for name, handler in handlers.items()}


def rpc(name: str, handler: Any) -> Unary:
    """Return an RPC of the service with the messages of its description."""
    method = METHODS[name]
    request, reply = (getattr(wire, one.name) for one in (method.input_type, method.output_type))
    has_status = "status" in method.output_type.fields_by_name
    return Unary(request, reply, handler, has_status=has_status, is_for_operators=True)


async def change_log_level(request: Any, caller: Caller) -> Any:
    """Say that the level stays; the reply has no status."""
    return wire.ChangeLogLevelResponse(remark=ONE_LEVEL)
