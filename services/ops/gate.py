"""Lets a request over HTTP through if it bears the token; probes of health need none.

`Authorization: Bearer <token>`. Cost: one comparison, which takes as long for a near guess as for a far one.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from commitlog.errors import Unauthorized
from services.refusals import Refusals

OPEN_PATHS: Final = frozenset(("/livez", "/readyz"))
UNAUTHORIZED: Final = 401
REASON: Final = "http token"


class Gate:
    """An application behind a token."""

    def __init__(self, app: ASGIApp, token: str, refusals: Refusals) -> None:
        self._app, self._refusals = app, refusals
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._bears_token(Request(scope)):
            await self._app(scope, receive, send)
        else:
            await self._refuse(Request(scope))(scope, receive, send)

    def _bears_token(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, self._wanted)

    def _refuse(self, request: Request) -> JSONResponse:
        host = request.client.host if request.client else ""
        self._refusals.add(REASON, host, f"{request.method} {request.scope['path']}")
        said = Unauthorized(
            "Its HTTP interface wants a token:"
            " set TIDEWHEEL_HTTP_TOKEN to the file that the broker's --http-token names."
        )
        shape = {"code": said.code, "detail": said.detail, "message": str(said)}
        return JSONResponse(shape, status_code=UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})
