"""The console as a process: a socket on loopback, the pages, and a one-time link that signs in."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from services.console.app import make_app
from services.console.broker import Broker
from services.console.sessions import Sessions
from services.ops.http_server import HttpServer
from services.ops.origins import names_of
from services.process.ending import signals_to_end
from services.process.ports import refusal
from services.settings.config import Address
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError


def serve(http: str | None, listen: Address, token: str, announce: Callable[[str, str], None]) -> None:
    """Serve until a signal to end.

    `announce` is called with the URL, and that of a one-time link whose session calls with `token`.
    Raise `ConfigurationError` for an address that is not loopback, `PortTaken`.
    """
    if not is_loopback(listen.host):
        raise ConfigurationError(
            f"--listen is {listen}: the console is served on loopback only. From another machine: "
            f"ssh -L {listen.port or 8089}:127.0.0.1:{listen.port or 8089} HOST"
        )
    with closing(listening_on(listen)) as bound:
        asyncio.run(_serve(bound, http, token, announce))


async def _serve(
    bound: socket.socket, http: str | None, token: str, announce: Callable[[str, str], None]
) -> None:
    loop, sessions = asyncio.get_running_loop(), Sessions(time.monotonic)
    address = Address(*bound.getsockname()[:2])
    names = names_of([address.host], is_loopback=True)
    server = HttpServer(make_app(partial(Broker, http), sessions, names, address.port))

    def stop() -> None:
        server.should_exit = True

    for number in signals_to_end():
        loop.add_signal_handler(number, stop)
    url = f"http://{address}"
    announce(url, f"{url}/enter?key={sessions.new_link(token)}")
    await server.serve([bound])


def listening_on(address: Address) -> socket.socket:
    """Return a socket that listens; raise `PortTaken` or `ConfigurationError`."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        raise refusal(address, "--listen", error) from error
    return bound
