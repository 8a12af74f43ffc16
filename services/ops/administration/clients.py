"""The operations of `/api/clients`: connected clients, and requests to a client.

    GET  /api/clients             lists the connected clients
    GET  /api/clients/show        shows the client ?client= and its last metrics
    POST /api/clients/stack       {"client"}: returns the stacks of its threads
    POST /api/clients/verify      {"client", "topic", "queue_id", "queue_offset"}: consumes a message again
    POST /api/clients/reconnect   {"client"}: makes the client reconnect

The id of a client may contain slashes, so the id is in the body or in the query. If a client does not
respond, the status is 503.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from services.broker.spine.errors import MessageNotFound
from services.live.clients.client_metrics import ClientMetrics
from services.live.clients.clients import ClientRequests, ClientView
from services.live.errors import ClientNotFound
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.metrics.client_metrics import MeasuredAnswer, shapes
from services.ops.requests.answers import written
from services.ops.requests.operation import Operation
from services.ops.requests.request import Nothing, asked, said_as


class OneClientQuery(Nothing):
    """The id of the client to show."""

    client: str = Field(min_length=1, max_length=1_024)


class OneClient(BaseModel):
    """The id of the client that receives the request."""

    model_config = ConfigDict(extra="forbid")
    client: str = Field(min_length=1, max_length=1_024)


class OneMessageOfClient(OneClient):
    """The id of the client that receives the request, and the position of the message."""

    topic: str
    queue_id: int = Field(ge=0)
    queue_offset: int = Field(ge=0)


class ClientAnswer(TypedDict):
    """A client.

    `seen_ms` is the time of its last call, and `can_be_asked` is whether it has an open stream.
    """

    client_id: str
    kind: str
    group: str
    language: str
    version: str
    can_be_asked: bool
    seen_ms: str


class ClientsAnswer(TypedDict):
    """All connected clients."""

    clients: list[ClientAnswer]


class OneClientAnswer(TypedDict):
    """A client and its last reported metrics, which are empty during its first minute."""

    client: ClientAnswer
    measured: list[MeasuredAnswer]


class StackAnswer(TypedDict):
    """The stacks of the threads of a client, as text."""

    client: str
    stack: str


class VerifyAnswer(TypedDict):
    """The result of a client's listener, such as OK or FAILED_TO_CONSUME_MESSAGE."""

    client: str
    code: str


class ReconnectAnswer(TypedDict):
    """The client that was told to reconnect."""

    client: str


def client_shape(one: ClientView) -> ClientAnswer:
    """Return a client in JSON form."""
    return ClientAnswer(
        client_id=one.client_id,
        kind=one.kind,
        group=one.group,
        language=one.language,
        version=one.version,
        can_be_asked=one.can_be_asked,
        seen_ms=str(one.seen_ms),
    )


class ClientsApi:
    """The handlers of `/api/clients`."""

    def __init__(
        self, live: LiveBroker, clients: ClientRequests, measured: ClientMetrics | None = None
    ) -> None:
        self._live, self._clients, self._measured = live, clients, measured or ClientMetrics()

    async def all(self, request: Request) -> Response:
        """List the connected clients."""
        pauses = Pauses()
        ids = await pauses.sort_names(self._clients.ids())
        return await written({"clients": map(client_shape, self._views(ids))}, pauses=pauses)

    async def one(self, request: Request) -> JSONResponse:
        """Show a client and its reported metrics."""
        found = self._clients.view(asked(OneClientQuery, request).client)
        measured = shapes(self._measured.of(found.client_id))
        return JSONResponse({"client": client_shape(found), "measured": measured})

    async def stack(self, request: Request) -> JSONResponse:
        """Request the thread stacks of a client."""
        wanted = await said_as(OneClient, request)
        return JSONResponse({"client": wanted.client, "stack": await self._clients.stack(wanted.client)})

    async def verify(self, request: Request) -> JSONResponse:
        """Have a push consumer consume a message again, outside of its group."""
        wanted = await said_as(OneMessageOfClient, request)
        found = self._live.query(
            self._live.core.finding.read, wanted.topic, wanted.queue_id, wanted.queue_offset, 1
        )
        if not found or found[0].queue_offset != wanted.queue_offset:
            where = f"queue {wanted.queue_id}, offset {wanted.queue_offset}"
            raise MessageNotFound(f"{wanted.topic} has none in {where}.")
        code = await self._clients.verify(wanted.client, found[0])
        return JSONResponse({"client": wanted.client, "code": code})

    def _views(self, ids: Iterator[str]) -> Iterator[ClientView]:
        """Yield the clients with the given ids that are still connected."""
        for client_id in ids:
            with suppress(ClientNotFound):
                yield self._clients.view(client_id)

    async def reconnect(self, request: Request) -> JSONResponse:
        """Make a client reconnect."""
        wanted = await said_as(OneClient, request)
        self._clients.reconnect(wanted.client)
        return JSONResponse({"client": wanted.client})


ASKED: Final = (400, 404, 503)
"""The refusals of what asks a client, which may not answer."""
OPERATIONS: Final = (
    Operation("GET", "/api/clients", ClientsApi.all, {200: ClientsAnswer}),
    Operation(
        "GET",
        "/api/clients/show",
        ClientsApi.one,
        {200: OneClientAnswer},
        OneClientQuery,
        refusals=(400, 404),
    ),
    Operation(
        "POST",
        "/api/clients/stack",
        ClientsApi.stack,
        {200: StackAnswer},
        bodies=(OneClient,),
        refusals=ASKED,
    ),
    Operation(
        "POST",
        "/api/clients/verify",
        ClientsApi.verify,
        {200: VerifyAnswer},
        bodies=(OneMessageOfClient,),
        refusals=ASKED,
    ),
    Operation(
        "POST",
        "/api/clients/reconnect",
        ClientsApi.reconnect,
        {200: ReconnectAnswer},
        bodies=(OneClient,),
        refusals=ASKED,
    ),
)
