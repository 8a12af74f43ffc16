"""Checks of an HTTP request before its body is read and before the application runs.

    origin (services.ops.requests.origins) --> token --> content type --> limit on the body
    (services.ops.requests.bodies) 403                               401       415

Health probes require no `Host` and no token. A web page can send text, forms and files across origins, but
JSON only after a CORS preflight, which the broker never grants (Fetch standard, CORS-safelisted request
headers). Therefore, a body must be declared as JSON. This requirement also blocks pages in browsers that send
no `Origin`. Routes for raw bytes (`bodies.is_raw`) refuse only the content types that need no preflight.

With `Authorization: Bearer <token>`, the token of `--http-token` belongs to the administrator, and any other
token belongs to a user (`services.ops.requests.callers`). A request with two such header fields is refused,
because a proxy and the broker could use different fields. A URL that contains a token, encoded or not, is
refused before any other check, so that lists of refusals do not show the token. Cost: one constant-time
comparison, and for the token of a user also a hash.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.auth.errors import Unauthorized
from services.auth.refusals import Refusals
from services.auth.tokens import id_within
from services.ops import entrance
from services.ops.messages.cloud_events import VERSION_HEADER
from services.ops.requests.bodies import Bodies, is_raw
from services.ops.requests.callers import TOKEN, Authority, Caller, let_in, let_in_administrator
from services.ops.requests.errors import BodyNotJson, ForeignHost, TokenInUrl
from services.ops.requests.origins import Names, check_origin
from services.ops.requests.statuses import refuse
from tidewheel.errors import AccessRefused, ClientMistake, TidewheelError

OPEN_PATHS: Final = frozenset(("/livez", "/readyz"))
TOKENLESS_PATHS: Final = frozenset((entrance.PATH,))
"""Paths that a browser may open, but no foreign page: the console asks for the token itself."""
SENT_BY_PAGES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types allowed without a preflight by the Fetch standard."""
TOKEN_PARAMETERS: Final = frozenset(("access_token", "authorization", "bearer", "token"))
"""Query parameters commonly used for tokens."""
_DECODED_MAX: Final = 8
"""Maximum rounds of URL decoding in the search for a token: URLs may be encoded repeatedly."""
HOST, PAGE = "http host", "http page"
"""Reasons of refusals."""


@dataclass(frozen=True, slots=True)
class Demands:
    """The administrator's token ("" for none), the accepted `Host` names, and the limits on bodies."""

    token: str = ""
    names: Names = field(default_factory=Names)
    bodies: Bodies = field(default_factory=Bodies)


class Gate:
    """An ASGI middleware that enforces the demands."""

    def __init__(
        self, app: ASGIApp, demands: Demands, refusals: Refusals, authority: Callable[[], Authority]
    ) -> None:
        self._app, self._demands, self._refusals, self._authority = app, demands, refusals, authority
        self._administrators = demands.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
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
        is_asked = self._demands.token and request.scope["path"] not in TOKENLESS_PATHS
        if is_asked and (caller := self._user(request)) is not None:
            let_in(request, caller)
        elif is_asked:
            let_in_administrator(request)
        check_json(request)

    def _user(self, request: Request) -> Caller | None:
        """Return the caller for the token of the request, or None for the administrator.

        Raise `Unauthorized`.
        """
        given = request.headers.getlist("authorization")
        if len(given) > 1:
            raise Unauthorized(f"The request has {len(given)} fields Authorization: send one token.")
        scheme, _, text = "".join(given).partition(" ")
        text = text.strip(" ")
        is_bearer = scheme.lower() == "bearer"  # schemes are case-insensitive (RFC 9110, 11.1)
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
    """Raise `TokenInUrl` if the path or query contains a token.

    `administrators` is the token of --http-token.
    """
    query, url = scope.get("query_string", b"").decode("latin-1"), scope["path"]
    named: set[str] = set()
    if query:
        url = f"{url}?{query}"
        named = {name.lower() for name, _ in parse_qsl(query)}
    for _ in range(_DECODED_MAX):
        if "%" not in url:
            break
        url = unquote(url)
    try:
        unquote_to_bytes(scope.get("raw_path") or scope["path"]).decode()
        unquote_to_bytes(query.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise ClientMistake(
            f"The URL has a character that is no UTF-8 ({error.reason}): it would be read as another name. "
            "Percent-encode the bytes of UTF-8."
        ) from error
    if id_within(url) or (administrators and administrators in url) or named & TOKEN_PARAMETERS:
        raise TokenInUrl(
            "URLs are kept in logs and histories, so the token is no secret any more: revoke it, and send "
            "another as 'Authorization: Bearer TOKEN'."
        )


def check_json(request: Request) -> None:
    """Raise `BodyNotJson` unless the body is declared as JSON, or as raw bytes on a route for raw bytes."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    declared = headers.get("content-type", "")
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise BodyNotJson(f"Its content-encoding is {coding[:100]!r}: send it as it is, without one.")
    media_type = declared.partition(";")[0].strip().lower()
    if is_raw(request.method, request.url.path):
        # For other types, and for custom header fields, the browser sends a preflight.
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
