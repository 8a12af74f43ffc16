"""Request checks before the pages: the origin of a request and the format of a form.

| threat                                     | protection                                                    |
|--------------------------------------------|---------------------------------------------------------------|
| a page of another site or port             | Host, Origin, Sec-Fetch-Site (`origins.py`); Origin           |
|                                            | required for POST; SameSite=Strict cookie                     |
| a script or style in a name or a body      | Jinja escaping; `default-src 'self'` without exceptions       |
| a console page in a frame of another site  | `frame-ancestors 'none'`                                      |
| an unlimited request body                  | `BODY_BYTES_MAX`                                              |

Cost: one hash per request for the session lookup.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ops.requests.errors import ForeignHost, ForeignPage
from services.ops.requests.origins import Names, check_origin
from tidewheel.errors import AccessRefused, ClientMistake

BODY_BYTES_MAX: Final = 256 * 1024
DISCARDED_BYTES_MAX: Final = 16 << 20
"""The part of a longer form that is read before its refusal: the largest message body takes up to 12 MiB.

A browser that still sends when the connection is closed shows an error instead of the refusal."""
FORM: Final = "application/x-www-form-urlencoded"
POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
REMEDY: Final = "open the console at its loopback address, in a tab of its own."
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Gate:
    """ASGI middleware that refuses cross-site requests and adds security headers to responses."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request or refuse it."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if scope["type"] != "http":
            return
        try:
            check(Request(scope), self._names)
        except AccessRefused as error:
            refusal = PlainTextResponse(f"{error.code} {error}\n", 403)
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def check(request: Request, names: Names) -> None:
    """Raise `AccessRefused` for a request that another site may have sent."""
    try:
        check_origin(request.headers, names)
    except ForeignHost as error:
        # The console has no option for more names, which the broker's sentence proposes.
        host = request.headers.get("host", "")[:100]
        raise ForeignHost(f"The request is for {host!r}: {REMEDY}") from error
    except ForeignPage as error:
        raise ForeignPage(f"The console answers to its own pages only: {REMEDY}") from error
    if request.method not in ("GET", "HEAD") and "origin" not in request.headers:
        raise AccessRefused("An act must come from a page of the console; it has no Origin.")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises `ClientMistake` for another content type or a body that is too long.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ClientMistake(f"A form of the console is sent as {FORM}.")
    body, length = bytearray(), 0
    async for part in request.stream():
        length += len(part)
        if length <= BODY_BYTES_MAX:
            body += part
        elif length > DISCARDED_BYTES_MAX:
            break
    if length > BODY_BYTES_MAX:
        raise ClientMistake(
            f"The form is longer than {BODY_BYTES_MAX} bytes, as the browser encodes it. "
            "A longer message is sent with: tidewheel send TOPIC @FILE"
        )
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
