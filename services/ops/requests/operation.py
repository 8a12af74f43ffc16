"""An operation of the HTTP interface, which is a row in the table of a noun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from services.ops.requests.request import Nothing

Handler = Callable[[Any, Request], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with its handler, the shapes of its query and body, and its answers by status.

    A body is JSON in one of the shapes in `bodies`, or bytes of one of `media_types`. An answer without a
    shape (None) is text. `refusals` are the statuses of errors in addition to 500, which applies to all
    operations: 400 for an invalid request, 404 for an unknown object, 503 for operations that store data, and
    409 for operations that the current state may forbid.
    """

    method: str
    path: str
    handler: Handler
    answers: dict[int, Any]
    query: type[BaseModel] = Nothing
    bodies: tuple[type[BaseModel], ...] = field(default=())
    media_types: tuple[str, ...] = field(default=())
    refusals: tuple[int, ...] = (400,)
