"""SendMessage, EndTransaction, RecallMessage: what producers do."""

from __future__ import annotations

from commitlog.errors import NotFound, TidewheelError, TimerEnded, TransactionEnded
from services.broker.delays import dated
from services.broker.values import Resolution, SendReceipt, TimerVerdict, Verdict
from services.live.live_broker import LiveBroker
from services.rpc.caller import Caller
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
from services.rpc.messages import from_wire
from services.rpc.names import stored_name
from services.rpc.producers import Producers
from services.rpc.sessions import Sessions
from services.rpc.statuses import OK, overall, refusal
from services.rpc.together import together

RESOLUTIONS = {
    wire.TransactionResolution.COMMIT: Resolution.COMMIT,
    wire.TransactionResolution.ROLLBACK: Resolution.ROLLBACK,
}


class Producing:
    """Takes messages, the ends of transactions, and recalls."""

    def __init__(self, live: LiveBroker, sessions: Sessions, producers: Producers) -> None:
        self._live, self._sessions, self._producers = live, sessions, producers

    async def send_message(self, request: SendMessageRequest, caller: Caller) -> SendMessageResponse:
        """Store messages; each has its own result, and the answer comes when all are durable."""
        self._sessions.seen(caller)
        entries = await together([self._send(message, caller) for message in request.messages])
        return SendMessageResponse(status=overall([entry.status for entry in entries]), entries=entries)

    async def end_transaction(self, request: EndTransactionRequest, caller: Caller) -> EndTransactionResponse:
        """Commit or roll back; an unspecified resolution means that the producer does not know yet."""
        self._sessions.seen(caller)
        topic = stored_name(request.topic)
        resolution = RESOLUTIONS.get(request.resolution)
        answer = "UNKNOWN" if resolution is None else resolution.value
        try:
            if resolution is not None:
                await self._live.end_transaction(
                    topic, request.transaction_id, request.message_id, resolution
                )
        except TransactionEnded:
            answer += ", too late"
            raise
        except TidewheelError:
            answer += ", refused"
            raise
        finally:
            self._live.answered(request.transaction_id, answer)
        self._producers.add(topic, caller.client_id, request.topic.resource_namespace)
        return EndTransactionResponse(status=OK)

    async def recall_message(self, request: RecallMessageRequest, caller: Caller) -> RecallMessageResponse:
        """Cancel a delayed message. Cancelling twice is fine; cancelling too late is refused, saying when."""
        self._sessions.seen(caller)
        verdict = await self._live.recall(stored_name(request.topic), request.recall_handle)
        refuse_if_not_cancelled(verdict)
        return RecallMessageResponse(status=OK, message_id=verdict.message_id)

    async def _send(self, sent: wire.Message, caller: Caller) -> SendResultEntry:
        try:
            message = from_wire(sent, caller)
            receipt = await self._live.send(dated(message, self._live.now_ms()))
        except TidewheelError as error:
            return SendResultEntry(status=refusal(error), message_id=sent.system_properties.message_id)
        self._producers.add(message.topic, caller.client_id, sent.topic.resource_namespace)
        return result(receipt)


def result(receipt: SendReceipt) -> SendResultEntry:
    """Return a receipt as the wire has it."""
    return SendResultEntry(
        status=stored_status(receipt),
        message_id=receipt.message_id,
        transaction_id=receipt.transaction_id,
        offset=receipt.queue_offset,
        recall_handle=receipt.recall_handle,
    )


def stored_status(receipt: SendReceipt) -> wire.Status:
    """Return OK, with a word about a moment that many delayed messages share."""
    if not receipt.sharing_count:
        return OK
    others = f"about {receipt.sharing_count} other delayed messages are due in the same second"
    return wire.Status(code=wire.Code.OK, message=f"OK, and {others}")


def refuse_if_not_cancelled(verdict: TimerVerdict) -> None:
    """Raise what a verdict other than cancelled means to the one who asked.

    Not `MessageNotFound`: the official clients take its status for an empty receive, that is for success.
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
