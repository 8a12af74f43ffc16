"""Requests to clients over their Telemetry streams. Each request has a nonce that is repeated in the answer.

| question            | answer                                          | clients that answer            |
|---------------------|-------------------------------------------------|--------------------------------|
| print_thread_stack  | thread_stack_trace                              | Java, Go, Node                 |
| verify_message      | verify_message_result; the result is its status | Java; Go and Node with         |
|                     |                                                 | NOT_IMPLEMENTED, which Node    |
|                     |                                                 | sends in a verify_message      |
| reconnect_endpoints | none: the client reconnects                     | Java, Node                     |

A client that does not support a request ignores it, as the Python client does, so every wait has a timeout.
An answer is accepted only from the client that received the request.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Final

from services.broker.spine.values import Delivery
from services.live.clients.clients import ClientView, client_not_found
from services.rpc.clients.session import Session, Stream
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.definition_pb2 import ClientType, Code
from services.rpc.generated.service_pb2 import (
    PrintThreadStackTraceCommand,
    ReconnectEndpointsCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from services.rpc.wire.delivered import DeliveryView
from services.rpc.wire.errors import ClientSilent

ANSWER_SECONDS: Final = 10.0
ANSWERS: Final = ("thread_stack_trace", "verify_message_result", "verify_message_command")


class ClientQueries:
    """Pending requests to clients, and their answers."""

    def __init__(self, sessions: Sessions, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._sessions, self._answer_seconds = sessions, answer_seconds
        self._nonces = count(1)
        self._open: dict[tuple[str, str], asyncio.Future[TelemetryCommand]] = {}

    def ids(self) -> list[str]:
        """Return the ids of the connected clients, unsorted."""
        return [session.client_id for session in self._sessions]

    def view(self, client_id: str) -> ClientView:
        """Return a connected client. Raises `ClientNotFound`."""
        return view(self._found(client_id))

    async def stack(self, client_id: str) -> str:
        """Return a thread dump of a client. Raises `ClientNotFound` or `ClientSilent`."""
        nonce = self._nonce()
        command = PrintThreadStackTraceCommand(nonce=nonce)
        question = TelemetryCommand(print_thread_stack_trace_command=command)
        answer = await self._asked(client_id, nonce, question)
        return str(answer.thread_stack_trace.thread_stack_trace)

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Have a push consumer process a message again, and return the status code; raise the same errors."""
        nonce = self._nonce()
        command = VerifyMessageCommand(nonce=nonce, message=DeliveryView("", 0, "").message(delivery))
        answer = await self._asked(client_id, nonce, TelemetryCommand(verify_message_command=command))
        return str(Code.Name(answer.status.code))

    def reconnect(self, client_id: str) -> None:
        """Request a client to reconnect. Raises `ClientNotFound` or `ClientSilent`."""
        command = ReconnectEndpointsCommand(nonce=self._nonce())
        self._write(client_id, TelemetryCommand(reconnect_endpoints_command=command))

    def answered(self, command: TelemetryCommand, session: Session) -> None:
        """Pass an answer to the request that waits for it."""
        kind = command.WhichOneof("command")
        if kind in ANSWERS:
            waiting = self._open.pop((session.client_id, getattr(command, kind).nonce), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)

    async def _asked(self, client_id: str, nonce: str, question: TelemetryCommand) -> TelemetryCommand:
        answer: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._open[client_id, nonce] = answer
        try:
            self._write(client_id, question)
            async with asyncio.timeout(self._answer_seconds):
                return await answer
        except TimeoutError:
            raise silent(client_id, f"has not answered for {self._answer_seconds:g} s") from None
        finally:
            self._open.pop((client_id, nonce), None)

    def _write(self, client_id: str, question: TelemetryCommand) -> None:
        streams: list[Stream] = self._found(client_id).streams
        if not (streams and streams[-1].write(question)):
            raise silent(client_id, "has no stream to be written to")

    def _found(self, client_id: str) -> Session:
        session = self._sessions.find(client_id)
        if session is None:
            raise client_not_found(client_id)
        return session

    def _nonce(self) -> str:
        return f"tidewheel-{next(self._nonces)}"


def silent(client_id: str, why: str) -> ClientSilent:
    """Return the error for a client that cannot be reached or does not answer."""
    return ClientSilent(f"{client_id} {why}. Java, Go and Node clients answer; Python's knows no questions.")


def view(session: Session) -> ClientView:
    """Return the current state of a client."""
    return ClientView(
        client_id=session.client_id,
        kind=kind_of(session),
        group=session.group,
        language=session.language,
        version=session.version,
        can_be_asked=bool(session.streams),
        seen_ms=session.seen_ms,
    )


def kind_of(session: Session) -> str:
    """Return the type that a client has declared, or an empty string.

    An unknown type is shown as its number.
    """
    if session.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
        return ""
    known: Any = ClientType.DESCRIPTOR.values_by_number.get(session.client_type)
    return str(known.name if known else session.client_type)
