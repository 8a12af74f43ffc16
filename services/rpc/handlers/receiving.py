"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: consumer RPCs.

Compatibility (reference/wire-protocol.md 4): the stream must end with `delivery_timestamp`, because otherwise
the Python push consumer never consumes. The queue id of a request is ignored, because clients choose a random
queue and expect messages from all queues.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final

from commitlog import limits
from commitlog.limits import AUTO_RENEW_LEASE_MS, LEASE_MS_DEFAULT, LONG_POLL_MS, RECEIVE_BATCH_MAX
from services.broker.spine.values import Delivery
from services.live.live_broker import LiveBroker
from services.rpc.clients.handover import PendingLease, lent
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.service_pb2 import (
    AckMessageEntry,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from services.rpc.handlers.lite_receiving import refuse_unsubscribed_clients
from services.rpc.wire.caller import Asked, Caller
from services.rpc.wire.delivered import DeliveryView
from services.rpc.wire.filters import wanted
from services.rpc.wire.messages import span_ms, timestamp
from services.rpc.wire.names import stored_name
from services.rpc.wire.replies import DecidedReply, check_count, varint
from services.rpc.wire.statuses import NO_MESSAGES, OK, overall, refusal
from tidewheel.errors import ClientMistake, TidewheelError

RECEIVED = ReceiveMessageResponse(status=OK).SerializeToString()
NOTHING = ReceiveMessageResponse(status=NO_MESSAGES).SerializeToString()
ACKNOWLEDGED = AckMessageResponse(status=OK).SerializeToString()
ENTRY_OK = AckMessageResultEntry(status=OK).SerializeToString()
FORWARDED = ForwardMessageToDeadLetterQueueResponse(status=OK).SerializeToString()
ANSWER_SECONDS = 0.5
COUNTS_APART: Final = frozenset(("PYTHON",))
"""Languages whose clients give up after the maximum number of attempts and send the number of attempts that
they have received.
"""


class ConsumerHandlers:
    """Delivers messages and processes their results."""

    def __init__(self, live: LiveBroker, sessions: Sessions) -> None:
        self._live, self._sessions = live, sessions
        self._store_host = live.settings.store_host[0]

    async def receive_message(
        self, request: ReceiveMessageRequest, caller: Caller
    ) -> AsyncGenerator[bytes, None]:
        """Yield the status, the messages, and the delivery time. Waits for the first message."""
        group, topic = stored_name(request.group), stored_name(request.message_queue.topic)
        session = self._sessions.seen(caller)
        refuse_unsubscribed_clients(session, topic, self._live)
        self._release_unanswered(session, group, topic, request.attempt_id)
        deliveries = await self._lease(request, session, poll_seconds(request, session, caller))
        if not deliveries:
            yield NOTHING
            return
        answer = lent(group, topic, request.attempt_id, deliveries)
        heard, body_bytes = False, sum(len(one.record.body) for one in deliveries)
        self._live.receivers.unread_bytes += body_bytes
        try:
            yield RECEIVED
            namespace = request.message_queue.topic.resource_namespace
            for reply in map(DeliveryView(namespace, lease_ms(request), self._store_host).reply, deliveries):
                yield reply
            left = ReceiveMessageResponse(delivery_timestamp=timestamp(self._live.now_ms()))
            yield left.SerializeToString()
            heard = True
        finally:
            self._live.receivers.unread_bytes -= body_bytes
            if heard:
                remember(session, answer)
            else:
                self._live.receivers.release_all_leases(answer.group, answer.topic, answer.handles)

    def ack_messages(self, calls: Sequence[Asked]) -> list[DecidedReply | TidewheelError]:
        """Acknowledge the deliveries of several calls.

        Consecutive calls for the same topic are processed together.

        Each delivery has a separate result.
        """
        answers: list[DecidedReply | TidewheelError] = []
        for name, run in groupby(map(self._acknowledging, calls), lambda one: one[0]):
            said = [entries for _, entries in run]
            handles = [entry.receipt_handle for entries in said for entry in entries]
            if isinstance(name, TidewheelError):
                answers += [name] * len(said)
                continue
            try:
                told = iter(self._live.call_with_time(self._live.core.receiving.ack_many, *name, handles))
            except TidewheelError as error:
                answers += [error] * len(said)
            else:
                answers += [acknowledged_reply(one, list(islice(told, len(one)))) for one in said]
        return answers

    def _acknowledging(
        self, call: Asked
    ) -> tuple[tuple[str, str] | TidewheelError, Sequence[AckMessageEntry]]:
        """Return the group and topic (stored names) of a call and its entries, or the error that refuses the
        call.
        """
        request, caller = call
        try:
            self._sessions.seen(caller)
            entries = list(request.entries)
            check_count(entries)
            return (stored_name(request.group), stored_name(request.topic)), entries
        except TidewheelError as error:
            return error, ()

    def change_invisible_duration(
        self, request: ChangeInvisibleDurationRequest, caller: Caller
    ) -> DecidedReply:
        """Change the lease of a delivery. The old receipt handle becomes invalid."""
        self._sessions.seen(caller)
        handle, durable_at = self._live.call_with_time(
            self._live.core.receiving.change_invisible,
            stored_name(request.group),
            stored_name(request.topic),
            request.receipt_handle,
            span_ms(request.invisible_duration),
            request.suspend,
        )
        reply = ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)
        return DecidedReply(durable_at, reply.SerializeToString())

    def forward_message_to_dead_letter_queue(
        self, request: ForwardMessageToDeadLetterQueueRequest, caller: Caller
    ) -> DecidedReply:
        """Move a delivery to the group's dead-letter queue."""
        self._sessions.seen(caller)
        durable_at = self._live.call_with_time(
            partial(self._live.core.receiving.forward_to_dead_letter, attempt=attempts_of(request, caller)),
            stored_name(request.group),
            stored_name(request.topic),
            request.receipt_handle,
        )
        return DecidedReply(durable_at, FORWARDED)

    def _release_unanswered(self, session: Session, group: str, topic: str, attempt_id: str) -> None:
        last = session.lent.pop((group, topic), None)
        if last is not None and attempt_id and last.attempt_id == attempt_id:
            self._live.receivers.release_all_leases(last.group, last.topic, last.handles)

    async def _lease(
        self, request: ReceiveMessageRequest, session: Session, wait_seconds: float
    ) -> list[Delivery]:
        self._live.receivers.renew_client_leases(session.client_id)
        with self._sessions.receiving(session):
            return await self._live.receivers.receive(
                stored_name(request.group),
                stored_name(request.message_queue.topic),
                wanted(request.filter_expression),
                batch_size(request),
                lease_ms(request),
                session.client_id,
                request.auto_renew,
                wait_seconds,
                request.attempt_id,
            )


def acknowledged_reply(
    entries: Sequence[AckMessageEntry], answers: Sequence[int | TidewheelError]
) -> DecidedReply:
    """Return the reply to acknowledgements, and the log offset that must be durable before it is sent.

    If all succeeded, the reply consists of the request's entries with a status added to each.
    """
    told = [answer for answer in answers if isinstance(answer, int)]
    durable_at = max(told, default=0)
    if len(told) == len(answers):
        return DecidedReply(durable_at, ACKNOWLEDGED + b"".join(map(entry_reply, entries)))
    results = [
        AckMessageResultEntry(
            message_id=entry.message_id,
            receipt_handle=entry.receipt_handle,
            status=OK if isinstance(answer, int) else refusal(answer),
        )
        for entry, answer in zip(entries, answers, strict=True)
    ]
    status = overall([one.status for one in results])
    reply = AckMessageResponse(status=status, entries=results)
    return DecidedReply(durable_at, reply.SerializeToString(), Code.Name(status.code))


def entry_reply(entry: AckMessageEntry) -> bytes:
    """Return the bytes of a successful result: fields 1 and 2 of the entry, and the status as field 3."""
    entry.ClearField("lite_topic")  # is field 3 of the request entry
    said = entry.SerializeToString()
    return b"\x12%b%b%b" % (varint(len(said) + len(ENTRY_OK)), said, ENTRY_OK)


def remember(session: Session, answer: PendingLease) -> None:
    """Store the last answer for a group and topic, in case the client repeats the request."""
    session.lent.pop((answer.group, answer.topic), None)
    session.lent[answer.group, answer.topic] = answer
    if len(session.lent) > limits.LEASES_PER_CLIENT_MAX:
        del session.lent[next(iter(session.lent))]


def batch_size(request: ReceiveMessageRequest) -> int:
    """Return the maximum number of messages in the answer. Raises `ClientMistake` if it is below 1."""
    if request.batch_size < 1:
        raise ClientMistake(f"A batch size of {request.batch_size} asks for nothing. Ask for 1 or more.")
    return min(request.batch_size, RECEIVE_BATCH_MAX)


def lease_ms(request: ReceiveMessageRequest) -> int:
    """Return the lease duration of the deliveries."""
    if request.HasField("invisible_duration"):
        return span_ms(request.invisible_duration)
    return AUTO_RENEW_LEASE_MS if request.auto_renew else LEASE_MS_DEFAULT


def attempts_of(request: ForwardMessageToDeadLetterQueueRequest, caller: Caller) -> int:
    """Return the number of attempts of a message according to the consumer that gives it up."""
    return request.max_delivery_attempts if caller.language in COUNTS_APART else request.delivery_attempt


def poll_seconds(request: ReceiveMessageRequest, session: Session, caller: Caller) -> float:
    """Return the wait time for a message. It leaves time to answer within the deadline of the call.

    Go's simple consumer specifies the wait time only in its settings.
    """
    asked = request.HasField("long_polling_timeout")
    wanted = min(span_ms(request.long_polling_timeout) if asked else session.poll_ms, LONG_POLL_MS) / 1000
    if caller.seconds_left is None:
        return wanted
    return min(wanted, caller.seconds_left - ANSWER_SECONDS)
