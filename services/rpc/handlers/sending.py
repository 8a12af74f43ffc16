"""SendMessage, EndTransaction, RecallMessage: producer RPCs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from services.broker.sending import MessageSender
from services.broker.spine.errors import TimerEnded
from services.broker.spine.values import Resolution, SendReceipt, TimerVerdict, Verdict
from services.broker.timers.delays import with_absolute_times
from services.live.durability import required_offset
from services.live.live_broker import LiveBroker
from services.rpc.clients.producers import Producers
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from services.rpc.wire.caller import Asked, Caller
from services.rpc.wire.messages import from_wire
from services.rpc.wire.names import stored_name
from services.rpc.wire.replies import DecidedReply, check_count, field, text_field, varint
from services.rpc.wire.statuses import OK, overall, refusal
from tidewheel.errors import NotFound, TidewheelError, TransactionEnded

ENTRY_OK = SendResultEntry(status=OK).SerializeToString()
"""The status of a stored message, which has the same bytes in an entry and in the reply."""
ENTRY_TAG, TRANSACTION_ID_TAG, OFFSET_TAG, RECALL_HANDLE_TAG = b"\x12", b"\x1a", b"\x20", b"\x2a"
"""Tags of `SendMessageResponse.entries` and of the fields of `SendResultEntry`."""
STORED_ID_TAG = ENTRY_OK + b"\x12"
"""The status of a stored message, and the tag of its id."""
ENDED = EndTransactionResponse(status=OK).SerializeToString()

Answer = SendReceipt | TidewheelError
RESOLUTIONS = {
    wire.TransactionResolution.COMMIT: Resolution.COMMIT,
    wire.TransactionResolution.ROLLBACK: Resolution.ROLLBACK,
}


class ProducerHandlers:
    """Handles messages, ends of transactions, and recalls."""

    def __init__(self, live: LiveBroker, sessions: Sessions, producers: Producers) -> None:
        self._live, self._sessions, self._producers = live, sessions, producers

    def send_messages(self, calls: Sequence[Asked]) -> list[DecidedReply | TidewheelError]:
        """Store the messages of several calls. Each call has a separate result.

        Without a core, all calls are refused.
        """
        return self._live.call_with_time(self._send_each, calls)

    def _send_each(self, calls: Sequence[Asked], now_ms: int) -> list[DecidedReply | TidewheelError]:
        sending, offset_ms = self._live.core.sending, self._live.clock.offset_ms
        told: list[DecidedReply | TidewheelError] = []
        for request, caller in calls:
            sent = request.messages
            try:
                self._sessions.seen(caller)
                check_count(sent)
            except TidewheelError as error:
                told.append(error)
            else:
                answers = [self._send(one, caller, sending, offset_ms, now_ms) for one in sent]
                only = answers[0]
                if len(answers) == 1 and isinstance(only, SendReceipt):  # the most frequent case
                    told.append(DecidedReply(only.durable_at, ENTRY_OK + stored_entry(only)))
                else:
                    told.append(sent_reply(request, answers))
        return told

    def _send(
        self, sent: wire.Message, caller: Caller, sending: MessageSender, offset_ms: int, now_ms: int
    ) -> Answer:
        """Store a message. Returns its receipt or the error that refuses it.

        `offset_ms` is the difference between the broker's time and the caller's time.
        """
        try:
            message = with_absolute_times(from_wire(sent, caller), now_ms - offset_ms)
            if offset_ms:
                message = self._live.clock.to_broker_time(message)
            receipt = sending.send(message, now_ms)
        except TidewheelError as error:
            return error
        self._producers.add(message.topic, caller.client_id, sent.topic.resource_namespace)
        return receipt

    def end_transaction(self, request: EndTransactionRequest, caller: Caller) -> DecidedReply:
        """Commit or roll back.

        An unspecified resolution means that the producer does not know the outcome yet.
        """
        self._sessions.seen(caller)
        topic = stored_name(request.topic)
        resolution = RESOLUTIONS.get(request.resolution)
        answer, durable_at = "UNKNOWN" if resolution is None else resolution.value, 0
        try:
            if resolution is not None:
                ended = self._live.call_with_time(
                    self._live.core.transactions.end,
                    topic,
                    request.transaction_id,
                    request.message_id,
                    resolution,
                )
                durable_at = ended.durable_at
        except TidewheelError as error:
            why = "too late" if isinstance(error, TransactionEnded) else "refused"
            self._live.record_answer(request.transaction_id, f"{answer}, {why}")
            raise
        self._producers.add(topic, caller.client_id, request.topic.resource_namespace)
        told = partial(self._live.record_answer, request.transaction_id, answer)
        return DecidedReply(durable_at, ENDED, then=told)

    def recall_message(self, request: RecallMessageRequest, caller: Caller) -> DecidedReply:
        """Cancel a delayed message. A repeated recall succeeds.

        A recall after the delivery is refused with the delivery time.
        """
        self._sessions.seen(caller)
        live, topic = self._live, stored_name(request.topic)
        verdict = live.clock.to_real_time(
            live.call_with_time(live.core.timers.recall, topic, request.recall_handle)
        )
        refuse_if_not_cancelled(verdict)
        reply = RecallMessageResponse(status=OK, message_id=verdict.message_id)
        return DecidedReply(verdict.durable_at, reply.SerializeToString())


def sent_reply(request: SendMessageRequest, answers: list[Answer]) -> DecidedReply:
    """Return the reply for stored or refused messages, and the log offset that must be durable before it is
    sent.
    """
    parts, durable_at = [ENTRY_OK], 0
    for answer in answers:
        if not isinstance(answer, SendReceipt):
            return refused_reply(request, answers)
        if answer.durable_at > durable_at:
            durable_at = answer.durable_at
        parts.append(stored_entry(answer))
    return DecidedReply(durable_at, b"".join(parts))


def refused_reply(request: SendMessageRequest, answers: list[Answer]) -> DecidedReply:
    """Return the reply for messages of which at least one was refused."""
    results = [
        stored_result(answer)
        if isinstance(answer, SendReceipt)
        else SendResultEntry(status=refusal(answer), message_id=sent.system_properties.message_id)
        for sent, answer in zip(request.messages, answers, strict=True)
    ]
    rests = [one.durable_at if isinstance(one, SendReceipt) else required_offset(one) for one in answers]
    status = overall([one.status for one in results])
    reply = SendMessageResponse(status=status, entries=results)
    return DecidedReply(max(rests), reply.SerializeToString(), wire.Code.Name(status.code))


def stored_entry(receipt: SendReceipt) -> bytes:
    """Return the bytes of an entry of `SendMessageResponse` for a stored message.

    The bytes equal the protobuf encoding of `stored_result`, at a third of the cost: status 1, message_id 2,
    transaction_id 3, offset 4, recall_handle 5. Every stored message has an id.
    """
    if receipt.replaced_offset >= 0:
        return field(ENTRY_TAG, stored_result(receipt).SerializeToString())
    entry = field(STORED_ID_TAG, receipt.message_id.encode())
    if receipt.transaction_id:
        entry += text_field(TRANSACTION_ID_TAG, receipt.transaction_id)
    if offset := receipt.queue_offset:
        entry += OFFSET_TAG + varint(offset)
    if receipt.recall_handle:
        entry += text_field(RECALL_HANDLE_TAG, receipt.recall_handle)
    return field(ENTRY_TAG, entry)


def stored_result(receipt: SendReceipt) -> SendResultEntry:
    """Return the protobuf message for a receipt. If a timer was replaced, the status message mentions it."""
    status = OK
    if receipt.replaced_offset >= 0:
        status = wire.Status(code=OK.code, message=f"OK, replaced timer {receipt.replaced_offset}")
    return SendResultEntry(
        status=status,
        message_id=receipt.message_id,
        transaction_id=receipt.transaction_id,
        offset=receipt.queue_offset,
        recall_handle=receipt.recall_handle,
    )


def refuse_if_not_cancelled(verdict: TimerVerdict) -> None:
    """Raise the error for a verdict other than cancelled.

    `MessageNotFound` is not used, because official clients treat its status as an empty receive, and thus as
    success.
    """
    match verdict.verdict:
        case Verdict.TOO_LATE:
            raise TimerEnded(
                f"TOO_LATE: message {verdict.message_id} was delivered at {verdict.ended_ms} ms"
                f" (log offset {verdict.ended_offset})."
            )
        case Verdict.NEVER_SET:
            raise NotFound("NEVER_SET: no delayed message of this topic has that recall handle.")
        case Verdict.FORGOTTEN:
            raise NotFound("FORGOTTEN: it was due before the kept history; nobody knows how it ended.")
        case Verdict.CANCELLED | Verdict.ALREADY:
            return
        case Verdict.MOVED | Verdict.FIRED:
            raise AssertionError(f"a recall is never answered {verdict.verdict.value}")
