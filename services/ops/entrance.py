"""`GET /`: leads a browser of this machine to the console.

Where HTTP asks for no token, the link signs in: a caller of this address may do everything over it anyway.
Where it asks for one, the console does, too. The console listens on loopback: a browser elsewhere is told so.
It is no operation of the interface, and not in `/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from services.ops.statuses import refuse
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
        """Redirect to the console, which starts at the first look."""
        if request.client is None or not is_loopback(request.client.host):
            return PlainTextResponse(ELSEWHERE, 404)
        try:
            return RedirectResponse(await self._link(not self._asks), 303)
        except TidewheelError as error:
            return await refuse(request, error)
