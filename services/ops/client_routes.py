"""The requests about connected clients: a part of the table of `services.ops.routes`."""

from __future__ import annotations

from typing import Any

from services.ops.clients import (
    ClientsAnswer,
    ClientsApi,
    OneClient,
    OneClientAnswer,
    OneClientQuery,
    OneMessageOfClient,
    ReconnectAnswer,
    StackAnswer,
    VerifyAnswer,
)
from services.ops.operation import Operation

REFUSALS = (400, 404, 503)

CLIENT_OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    ClientsApi: (
        Operation("GET", "/api/clients", ClientsApi.all, {200: ClientsAnswer}),
        Operation(
            "GET",
            "/api/clients/show",
            ClientsApi.one,
            {200: OneClientAnswer},
            query=OneClientQuery,
            refusals=(400, 404),
        ),
        Operation(
            "POST",
            "/api/clients/stack",
            ClientsApi.stack,
            {200: StackAnswer},
            bodies=(OneClient,),
            refusals=REFUSALS,
        ),
        Operation(
            "POST",
            "/api/clients/verify",
            ClientsApi.verify,
            {200: VerifyAnswer},
            bodies=(OneMessageOfClient,),
            refusals=REFUSALS,
        ),
        Operation(
            "POST",
            "/api/clients/reconnect",
            ClientsApi.reconnect,
            {200: ReconnectAnswer},
            bodies=(OneClient,),
            refusals=REFUSALS,
        ),
    ),
}
