"""The service as a table with the name, message types, kind, and handler of each RPC.

A handler takes (request, caller) and returns a reply or yields replies. A `TidewheelError` that it raises is
converted to the status of the reply. Handlers do not depend on the transport, so that another front end can
serve the same table.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from commitlog.limits import BODY_BYTES_MAX, CALLERS_UNFLUSHED_RECORD_BYTES
from services.front.grpc_wire import Refused
from services.live.errors import make_read_error
from services.rpc.clients.clients import Clients
from services.rpc.generated import service_pb2 as wire
from services.rpc.generated.definition_pb2 import Code, Status
from services.rpc.handlers.lite_receiving import LiteHandlers
from services.rpc.handlers.receiving import ConsumerHandlers
from services.rpc.handlers.routing import RouteHandlers
from services.rpc.handlers.sending import ProducerHandlers
from services.rpc.wire.caller import Asked, Caller
from services.rpc.wire.replies import DecidedReply
from services.rpc.wire.statuses import BUG, CLIENT_ID_REQUIRED, OK, refusal
from tidewheel.errors import TidewheelError

NAME = "apache.rocketmq.v2.MessagingService"
"""The service of RPCs without a full name `package.Service/Name`."""

Observe = Callable[[str, str, float], None]
"""Called for every answered call with the name of the RPC, the name of the status code, and the duration in
seconds.

For streams, it is called only for refusals, because the duration of a stream depends on its caller.
"""

ANSWERS = (Code.OK, Code.MESSAGE_NOT_FOUND)
"""Status codes of a stream that are not refusals.

A receive that found no message was answered successfully.
"""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Unary:
    """An RPC with one request and one reply.

    If the reply has no status, errors are raised as `CallRefused`.
    """

    request: Any
    reply: Any
    handler: Callable[[Any, Caller], Awaitable[Any]]
    has_status: bool = True


def no_records(request: Any) -> int:
    """Return 0, for RPCs that append little data."""
    return 0


Decide = Callable[[Sequence[Asked]], Sequence[DecidedReply | Exception]]
"""Executes calls of one RPC, in order.

Each call gets the result that it would get alone, or the error that refuses it.
"""


class Entries(NamedTuple):
    """The repeated field of a request that contains its messages. Each message has an entry in the reply."""

    name: str
    refused: Callable[[Any, Status], Any]
    """Creates the reply entry for a refused message."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An RPC with one request and one reply that is executed immediately and then waits only for the disk.

    `decide` receives all calls of an event loop iteration, in order. `appends` returns the number of bytes
    that a request may append, if the number is large (`services.live.room`). `entries` is the repeated field
    of messages, each of which costs as much as a separate call. `takes_new` is set if the RPC appends new
    messages, which `decide` refuses while new messages are stopped.
    """

    request: Any
    reply: Any
    decide: Decide
    appends: Callable[[Any], int] = no_records
    entries: Entries | None = None
    takes_new: bool = False


def per_call_handler(handler: Callable[[Any, Caller], DecidedReply]) -> Decide:
    """Return a `Decide` function that executes calls independently."""

    def decide(calls: Sequence[Asked]) -> list[DecidedReply | Exception]:
        answers: list[DecidedReply | Exception] = []
        for request, caller in calls:
            try:
                answers.append(handler(request, caller))
            except Exception as error:
                # its traceback would create a reference cycle with `answers`
                known = isinstance(error, TidewheelError)
                answers.append(error.with_traceback(None) if known else error)
        return answers

    return decide


@dataclass(frozen=True, slots=True)
class Streaming:
    """An RPC that replies with a stream to one request or, if `both_ways` is set, to a stream of requests.

    A reply that is not a refusal may be encoded as bytes.
    """

    request: Any
    reply: Any
    handler: Callable[[Any, Caller], AsyncGenerator[Any, None]]
    both_ways: bool = False
    has_status: bool = True


Rpc = Unary | Prompt | Streaming


def table(
    routing: RouteHandlers,
    producing: ProducerHandlers,
    consuming: ConsumerHandlers,
    lite: LiteHandlers,
    clients: Clients,
) -> dict[str, Rpc]:
    """Return the RPCs that official clients call, by name."""
    return {
        "QueryRoute": Unary(wire.QueryRouteRequest, wire.QueryRouteResponse, routing.query_route),
        "QueryAssignment": Unary(
            wire.QueryAssignmentRequest, wire.QueryAssignmentResponse, routing.query_assignment
        ),
        "SendMessage": Prompt(
            wire.SendMessageRequest,
            wire.SendMessageResponse,
            producing.send_messages,
            body_bytes,
            entries=Entries("messages", send_refused),
            takes_new=True,
        ),
        "EndTransaction": Prompt(
            wire.EndTransactionRequest,
            wire.EndTransactionResponse,
            per_call_handler(producing.end_transaction),
            a_copy,
        ),
        "RecallMessage": Prompt(
            wire.RecallMessageRequest, wire.RecallMessageResponse, per_call_handler(producing.recall_message)
        ),
        "ReceiveMessage": Streaming(
            wire.ReceiveMessageRequest, wire.ReceiveMessageResponse, consuming.receive_message
        ),
        "AckMessage": Prompt(
            wire.AckMessageRequest,
            wire.AckMessageResponse,
            consuming.ack_messages,
            entries=Entries("entries", acknowledgement_refused),
        ),
        "ChangeInvisibleDuration": Prompt(
            wire.ChangeInvisibleDurationRequest,
            wire.ChangeInvisibleDurationResponse,
            per_call_handler(consuming.change_invisible_duration),
        ),
        "ForwardMessageToDeadLetterQueue": Prompt(
            wire.ForwardMessageToDeadLetterQueueRequest,
            wire.ForwardMessageToDeadLetterQueueResponse,
            per_call_handler(consuming.forward_message_to_dead_letter_queue),
            a_copy,
        ),
        "SyncLiteSubscription": Unary(
            wire.SyncLiteSubscriptionRequest,
            wire.SyncLiteSubscriptionResponse,
            lite.sync_lite_subscription,
        ),
        "Telemetry": Streaming(
            wire.TelemetryCommand, wire.TelemetryCommand, clients.telemetry, both_ways=True
        ),
        "Heartbeat": Unary(wire.HeartbeatRequest, wire.HeartbeatResponse, clients.heartbeat),
        "NotifyClientTermination": Unary(
            wire.NotifyClientTerminationRequest,
            wire.NotifyClientTerminationResponse,
            clients.notify_client_termination,
        ),
    }


def body_bytes(request: wire.SendMessageRequest) -> int:
    """Return the total body size of a request.

    If it has several messages, `services.live.room` counts a minimum per message.
    """
    sent = request.messages
    if len(sent) == 1:
        return len(sent[0].body)
    return max(sum([len(message.body) for message in sent]), len(sent) * CALLERS_UNFLUSHED_RECORD_BYTES)


def send_refused(sent: Any, status: Status) -> wire.SendResultEntry:
    """Return the entry for a message that was not stored."""
    return wire.SendResultEntry(status=status, message_id=sent.system_properties.message_id)


def acknowledgement_refused(asked: wire.AckMessageEntry, status: Status) -> wire.AckMessageResultEntry:
    """Return the entry for a delivery that was not acknowledged."""
    return wire.AckMessageResultEntry(
        status=status, message_id=asked.message_id, receipt_handle=asked.receipt_handle
    )


def a_copy(request: Any) -> int:
    """Return the maximum size of a copy of a stored message."""
    return BODY_BYTES_MAX


async def reply_to(name: str, rpc: Unary, request: Any, caller: Caller, observe: Observe) -> Any:
    """Answer one request. Errors are returned in the status of the reply, or raised as `CallRefused`."""
    started = time.monotonic()
    reply: Any = None
    refused: Status | None = None
    try:
        reply = await rpc.handler(request, welcome(rpc, caller))
    except Refused:
        raise
    except (TidewheelError, NoClientId, OSError) as error:
        refused = status_of(error)
    except Exception:
        log.exception("bug while answering", rpc=name)
        refused = BUG
    if refused is not None and rpc.has_status:
        reply = rpc.reply(status=refused)
    said = reply.status if rpc.has_status else refused or OK
    observe(name, Code.Name(said.code), time.monotonic() - started)
    if reply is None:
        raise CallRefused(said)
    return reply


async def stream_to(
    name: str, rpc: Streaming, request: Any, caller: Caller, observe: Observe
) -> AsyncGenerator[Any, None]:
    """Answer with a stream. An error is the status of the last element, or is raised as `CallRefused`."""
    started = time.monotonic()
    try:
        async with aclosing(rpc.handler(request, welcome(rpc, caller))) as replies:
            async for reply in replies:
                is_refusal = not isinstance(reply, bytes) and rpc.has_status and reply.HasField("status")
                if is_refusal and reply.status.code not in ANSWERS:
                    observe(name, Code.Name(reply.status.code), time.monotonic() - started)
                yield reply
        return
    except Refused:
        raise
    except (TidewheelError, NoClientId, OSError) as error:
        refused = status_of(error)
    except Exception:
        log.exception("bug while answering", rpc=name)
        refused = BUG
    observe(name, Code.Name(refused.code), time.monotonic() - started)
    if not rpc.has_status:
        raise CallRefused(refused)
    yield rpc.reply(status=refused)


class NoClientId(Exception):
    """A call that does not say who calls."""


class CallRefused(Exception):
    """A call was refused whose reply has no place to say so."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


def welcome(rpc: Unary | Streaming, caller: Caller) -> Caller:
    """Return the caller. Raises `NoClientId` if a RocketMQ call has no client id."""
    if rpc.has_status and not caller.client_id:
        raise NoClientId
    return caller


def is_authorized(reply: Any) -> bool:
    """Return whether a reply was not refused as unauthorized."""
    return bool(getattr(reply, "status", None) is None or reply.status.code != Code.UNAUTHORIZED)


def status_of(error: TidewheelError | NoClientId | OSError) -> Status:
    """Return the status for an error. An OSError can only come from the files of the store."""
    if isinstance(error, OSError):
        # A TimeoutError has no errno, and is a bug here.
        return refusal(make_read_error(error)) if error.errno else BUG
    return refusal(error) if isinstance(error, TidewheelError) else CLIENT_ID_REQUIRED
