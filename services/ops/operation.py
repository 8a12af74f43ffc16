"""One request of the HTTP interface: a row of a noun's table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from services.ops.request import Nothing

Handler = Callable[[Any, Request], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One request: its handler, what may stand in its query and body, and its answers by status.

    A body is JSON in one of the shapes `bodies`, or bytes of one of `media_types`.

    An answer that is None is text. `refusals` are the statuses of errors beside 500, which any may have: 400
    for what can never be accepted, 404 for what names what is not here, 503 for what stores, 409 for what may
    be forbidden by what has happened.
    """

    method: str
    path: str
    handler: Handler
    answers: dict[int, Any]
    query: type[BaseModel] = Nothing
    bodies: tuple[type[BaseModel], ...] = field(default=())
    media_types: tuple[str, ...] = field(default=())
    refusals: tuple[int, ...] = (400,)
