"""The gate lets a request over HTTP through to the application, or refuses it before anything of it is read.

    is it a foreign page's?   --> does it bear a token?   --> is its body JSON?  --> its body, bounded
    services.ops.origins: 403     401                         415                    services.ops.bodies

Probes of health need neither a name nor a token: they say `alive` and `ready` to everybody. A page can send
a body as text, a form or a file without asking anybody; JSON it cannot, without the browser asking the
broker first, which never says yes (Fetch standard, CORS-safelisted request headers). So a body must be
declared as JSON, and a page that browsers say nothing about is kept out as well. Where bytes of any kind are
taken (`bodies.is_raw`), just what pages can send so is refused.

`Authorization: Bearer <token>`: that of `--http-token` is the administrator's, any other a user's
(`services.ops.callers`). It is given once: of two a proxy might take one and the broker the other. A URL that
holds a token, however often it is encoded, is refused before all else, so that no list of refusals shows it:
URLs are kept in logs and histories. Cost: one
comparison, which takes as long for a near guess as for a far one; of a user's token a hash besides.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.auth.errors import Unauthorized
from services.auth.refusals import Refusals
from services.auth.tokens import id_within
from services.ops.bodies import Bodies, is_raw
from services.ops.callers import TOKEN, Authority, Caller, let_in
from services.ops.cloud_events import VERSION_HEADER
from services.ops.errors import BodyNotJson, ForeignHost, TokenInUrl
from services.ops.origins import Names, check_origin
from services.ops.statuses import refuse
from tidewheel.errors import AccessRefused, TidewheelError

OPEN_PATHS: Final = frozenset(("/livez", "/readyz"))
SENT_BY_PAGES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""The content types that the Fetch standard lets a page send to any host."""
TOKEN_PARAMETERS: Final = frozenset(("access_token", "authorization", "bearer", "token"))
"""Names of fields in a query by which callers of other services send a token."""
_DECODED_MAX: Final = 8
"""How often a URL is decoded in search of a token: proxies and clients encode what is encoded."""
HOST, PAGE = "http host", "http page"
"""The reasons of refusals."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What requests must fulfil: a token ("": none), a name of the broker, and bounds of their bodies."""

    token: str = ""
    names: Names = field(default_factory=Names)
    bodies: Bodies = field(default_factory=Bodies)


class Gate:
    """An application behind the demands."""

    def __init__(
        self, app: ASGIApp, demands: Demands, refusals: Refusals, authority: Callable[[], Authority]
    ) -> None:
        self._app, self._demands, self._refusals, self._authority = app, demands, refusals, authority
        self._administrators = demands.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            self._check(request)
        except TidewheelError as error:
            await self._refuse(request, error, scope, receive, send)
            return
        with self._demands.bodies.of_one(receive) as bounded:
            await self._app(scope, bounded, send)

    def _check(self, request: Request) -> None:
        check_url(request.scope, self._demands.token)
        check_origin(request.headers, self._demands.names)
        if self._demands.token and (caller := self._user(request)) is not None:
            let_in(request, caller)
        check_json(request)

    def _user(self, request: Request) -> Caller | None:
        """Return the user whose token a request bears, None: the administrator; raise `Unauthorized`."""
        given = request.headers.getlist("authorization")
        if len(given) > 1:
            raise Unauthorized(f"The request has {len(given)} fields Authorization: send one token.")
        scheme, _, text = "".join(given).partition(" ")
        text = text.strip(" ")
        is_bearer = scheme.lower() == "bearer"  # schemes are in any case (RFC 9110, 11.1)
        if is_bearer and hmac.compare_digest(text.encode("latin-1", "replace"), self._administrators):
            return None
        if not is_bearer:
            raise Unauthorized(
                "Send a token, as 'Authorization: Bearer TOKEN'. Make one: tidewheel auth token add USER. "
                "Commands send the one in the file that TIDEWHEEL_HTTP_TOKEN names."
            )
        authority, host = self._authority(), request.client.host if request.client else ""
        asked = f"{request.method} {request.scope['path']}"
        return Caller(authority, authority.holder(text), self._refusals, host, asked)

    async def _refuse(
        self, request: Request, error: TidewheelError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(error, AccessRefused):
            asked = f"{request.method} {scope['path']}"
            is_about_token = isinstance(error, Unauthorized)
            reason = TOKEN if is_about_token else HOST if isinstance(error, ForeignHost) else PAGE
            detail = asked if is_about_token else f"{asked}: {error.detail}"
            self._refusals.add(reason, request.client.host if request.client else "", detail)
        answer = await refuse(request, error)
        await answer(scope, receive, send)


def check_url(scope: Scope, administrators: str) -> None:
    """Raise `TokenInUrl` for a path or a query that holds a token; `administrators`: that of --http-token."""
    query, url = scope.get("query_string", b"").decode("latin-1"), scope["path"]
    named: set[str] = set()
    if query:
        url = f"{url}?{query}"
        named = {name.lower() for name, _ in parse_qsl(query)}
    for _ in range(_DECODED_MAX):
        if "%" not in url:
            break
        url = unquote(url)
    if id_within(url) or (administrators and administrators in url) or named & TOKEN_PARAMETERS:
        raise TokenInUrl(
            "URLs are kept in logs and histories, so the token is no secret any more: revoke it, and send "
            "another as 'Authorization: Bearer TOKEN'."
        )


def check_json(request: Request) -> None:
    """Raise `BodyNotJson` for a body that is declared as anything but JSON, or what may be sent as bytes."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    declared = headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    if is_raw(request.method, request.url.path):
        # Of these a page can send only with the browser's question before; so it is with a field of its own.
        if media_type in ("", *SENT_BY_PAGES) and VERSION_HEADER not in headers:
            raise BodyNotJson(
                f"Its content-type is {declared[:100]!r}, which any web page can send. Say"
                " 'content-type: application/octet-stream', or what else the bytes are."
            )
    elif media_type != "application/json":
        raise BodyNotJson(
            f"Its content-type is {declared[:100]!r}."
            " Say 'content-type: application/json', as curl --json does."
        )
