"""The operation `GET /`, which redirects a browser on this machine to the console.

If HTTP requires no token, the link signs the browser in, because a local caller can use all operations of the
interface. If HTTP requires a token, the console requires a token as well. The console listens on loopback,
and a browser on another machine gets an error message. This operation is not a part of the interface, and not
in `/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from services.ops.requests.statuses import refuse
from tidewheel.client.address import is_loopback
from tidewheel.errors import TidewheelError

ConsoleLink = Callable[[bool], Awaitable[str]]
"""Returns where the console is, with a one-time key if it is to sign in."""

PATH: Final = "/"
ELSEWHERE: Final = (
    "The console is served on the broker's own machine only. Run one where you are: tidewheel console --http"
    " HOST:PORT (docs/console.md)\n"
)


class Entrance:
    """The handler of `/`."""

    def __init__(self, link: ConsoleLink, *, asks: bool) -> None:
        self._link, self._asks = link, asks

    async def enter(self, request: Request) -> Response:
        """Redirect to the console, which is started by the first request."""
        if request.client is None or not is_loopback(request.client.host):
            return PlainTextResponse(ELSEWHERE, 404)
        try:
            return RedirectResponse(await self._link(not self._asks), 303)
        except TidewheelError as error:
            return await refuse(request, error)
