"""One request of the HTTP interface: what the tables of `services.ops.routes` consist of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from services.ops.queries import Nothing

Handler = Callable[[Any, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One request: its handler, what may stand in its query and body, and its answers by status.

    An answer that is None is text. `refusals` are the statuses of errors beside 500, which any may have.
    """

    method: str
    path: str
    handler: Handler
    answers: dict[int, Any]
    query: type[BaseModel] = Nothing
    bodies: tuple[type[BaseModel], ...] = field(default=())
    refusals: tuple[int, ...] = (400,)
