"""The service as a table: each RPC's name, its messages, its shape, and the handler that answers it.

A handler takes (request, caller) and returns its reply, or yields replies; it raises `TidewheelError`s,
which become the reply's status here. It knows nothing of the transport, so another front can serve the same
table.
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
from services.rpc.handlers.lite_receiving import LiteConsuming
from services.rpc.handlers.receiving import Consuming
from services.rpc.handlers.routing import Routing
from services.rpc.handlers.sending import Producing
from services.rpc.wire.caller import Asked, Caller
from services.rpc.wire.replies import Decided
from services.rpc.wire.statuses import BUG, CLIENT_ID_REQUIRED, OK, refusal
from tidewheel.errors import TidewheelError

NAME = "apache.rocketmq.v2.MessagingService"
"""The service of every RPC that is not named in full, `package.Service/Name`."""

Observe = Callable[[str, str, float], None]
"""Told of every answered call: the RPC's name, the name of the status' code, the seconds it took.

Of streams it is told what they refuse; how long one lasts is its caller's choice.
"""

ANSWERS = (Code.OK, Code.MESSAGE_NOT_FOUND)
"""What a stream says that refuses nothing: a receive that found no message is none the less answered."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Unary:
    """An RPC of one request and one reply; without a status in it, `CallRefused` tells what went wrong."""

    request: Any
    reply: Any
    handler: Callable[[Any, Caller], Awaitable[Any]]
    has_status: bool = True


def no_records(request: Any) -> int:
    """Append little, whatever is asked."""
    return 0


Decide = Callable[[Sequence[Asked]], Sequence[Decided | Exception]]
"""Decides calls of one RPC, in order; a call gets what it would get alone, or the error that refuses it."""


class Entries(NamedTuple):
    """A request's field of messages, of which it may have several, each answered by an entry of the reply."""

    name: str
    refused: Callable[[Any, Status], Any]
    """Makes the entry of the reply that tells of a message why it was refused."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An RPC of one request and one reply which is decided at once, and then waits for nothing but the disk.

    `decide` is given all calls that came in a turn of the loop, one after the other. `appends` tells how many
    bytes a request may append, if they are many (`services.live.room`); `entries`, where its messages are if
    it may have several, each of which costs as much as a call of one; `takes_new`, whether what it appends
    are new messages, which `decide` refuses while these are stopped.
    """

    request: Any
    reply: Any
    decide: Decide
    appends: Callable[[Any], int] = no_records
    entries: Entries | None = None
    takes_new: bool = False


def one_by_one(handler: Callable[[Any, Caller], Decided]) -> Decide:
    """Decide calls that have nothing to share."""

    def decide(calls: Sequence[Asked]) -> list[Decided | Exception]:
        answers: list[Decided | Exception] = []
        for request, caller in calls:
            try:
                answers.append(handler(request, caller))
            except Exception as error:
                known = isinstance(error, TidewheelError)  # its traceback would hold `answers`: a circle
                answers.append(error.with_traceback(None) if known else error)
        return answers

    return decide


@dataclass(frozen=True, slots=True)
class Streaming:
    """An RPC that replies with a stream, to one request or (`both_ways`) to a stream of them.

    A reply that refuses nothing may be in bytes.
    """

    request: Any
    reply: Any
    handler: Callable[[Any, Caller], AsyncGenerator[Any, None]]
    both_ways: bool = False
    has_status: bool = True


Rpc = Unary | Prompt | Streaming


def table(
    routing: Routing, producing: Producing, consuming: Consuming, lite: LiteConsuming, clients: Clients
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
            one_by_one(producing.end_transaction),
            a_copy,
        ),
        "RecallMessage": Prompt(
            wire.RecallMessageRequest, wire.RecallMessageResponse, one_by_one(producing.recall_message)
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
            one_by_one(consuming.change_invisible_duration),
        ),
        "ForwardMessageToDeadLetterQueue": Prompt(
            wire.ForwardMessageToDeadLetterQueueRequest,
            wire.ForwardMessageToDeadLetterQueueResponse,
            one_by_one(consuming.forward_message_to_dead_letter_queue),
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
    """Return how many bytes the messages of a request have; several as `services.live.room` counts them."""
    sent = request.messages
    if len(sent) == 1:
        return len(sent[0].body)
    return max(sum([len(message.body) for message in sent]), len(sent) * CALLERS_UNFLUSHED_RECORD_BYTES)


def send_refused(sent: Any, status: Status) -> wire.SendResultEntry:
    """Return the entry for a message that is not stored."""
    return wire.SendResultEntry(status=status, message_id=sent.system_properties.message_id)


def acknowledgement_refused(asked: wire.AckMessageEntry, status: Status) -> wire.AckMessageResultEntry:
    """Return the entry for a delivery that is not acknowledged."""
    return wire.AckMessageResultEntry(
        status=status, message_id=asked.message_id, receipt_handle=asked.receipt_handle
    )


def a_copy(request: Any) -> int:
    """Return how many bytes a copy of a stored message may have."""
    return BODY_BYTES_MAX


async def reply_to(name: str, rpc: Unary, request: Any, caller: Caller, observe: Observe) -> Any:
    """Answer one request; whatever happens, the reply says so in its status, or raises `CallRefused`."""
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
    """Answer with a stream; what goes wrong is its last element's status, or raises `CallRefused`."""
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
    """Let a caller in who says who it is; of other protocols than RocketMQ's, everybody."""
    if rpc.has_status and not caller.client_id:
        raise NoClientId
    return caller


def is_authorized(reply: Any) -> bool:
    """Return whether a reply is for somebody who has said who it is, or whom nobody asks."""
    return bool(getattr(reply, "status", None) is None or reply.status.code != Code.UNAUTHORIZED)


def status_of(error: TidewheelError | NoClientId | OSError) -> Status:
    """Return the status that an error of a call means; the only files of a call are the store's."""
    if isinstance(error, OSError):
        # A time-out has no number, and is a bug here.
        return refusal(make_read_error(error)) if error.errno else BUG
    return refusal(error) if isinstance(error, TidewheelError) else CLIENT_ID_REQUIRED
