"""The console process: its loopback socket, its pages and its one-time links.

A standalone console creates one link and announces it. A child process of a broker
(`services.server.console`) reads link keys from stdin, one per line, and confirms each with a line on stdout.
It exits when stdin is closed, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple, TextIO

from services.console.app import make_app
from services.console.broker import connect, url_of
from services.console.pages.audits import Audits
from services.console.pages.table import pages_of
from services.console.sessions import Sessions
from services.console.sparklines import Samples, collect
from services.ops.http_server import HttpServer
from services.ops.requests.origins import names_of
from services.process.ending import signals_to_end
from services.process.open_files import allow_many_files
from services.process.ports import listen_on
from services.settings.config import Address
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError

TAKEN: Final = "taken"
"""The confirmation of a key by a child process."""


class Plan(NamedTuple):
    """The settings of a console. A child process exits with its parent."""

    http: str | None
    audits: Path
    is_read_only: bool
    is_child: bool


def serve(plan: Plan, listen: Address, token: str, announce: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. A child process also exits when stdin is closed.

    `announce` receives the console URL and the URL of a one-time link for a session with `token`. A child
    process passes an empty link. Raises `ConfigurationError` if the address is not a loopback address, and
    `PortTaken`.
    """
    if not is_loopback(listen.host):
        raise ConfigurationError(
            f"--listen is {listen}: the console is served on loopback only. From another machine: "
            f"ssh -L {listen.port or 8089}:127.0.0.1:{listen.port or 8089} HOST"
        )
    allow_many_files()
    with closing(listen_on(listen, "--listen")) as bound:
        asyncio.run(_serve(plan, bound, token, announce))


async def _serve(plan: Plan, bound: socket.socket, token: str, announce: Callable[[str, str], None]) -> None:
    loop, sessions = asyncio.get_running_loop(), Sessions(time.monotonic)
    address = Address(*bound.getsockname()[:2])
    names = names_of([address.host], is_loopback=True)
    audits, samples, ended = Audits(plan.audits), Samples(), Event()
    pages, files = pages_of(audits, samples), audits.files()
    app = make_app(
        partial(connect, plan.http),
        sessions,
        names,
        address.port,
        pages,
        files,
        broker_url=url_of(plan.http),
        is_read_only=plan.is_read_only,
        is_child=plan.is_child,
    )
    server = HttpServer(app)

    def stop() -> None:
        server.should_exit = True

    for number in signals_to_end():
        loop.add_signal_handler(number, stop)
    url = f"http://{address}"
    if plan.is_child:
        offer, end = partial(_offer, sessions), partial(loop.call_soon_threadsafe, stop)
        announce(url, "")
        Thread(target=take_keys, args=(sys.stdin, offer, loop, end), daemon=True).start()
    else:
        announce(url, f"{url}/enter?key={sessions.new_link(token)}")
    sampled = partial(connect, plan.http, token)
    Thread(target=collect, args=(samples, sampled, ended), daemon=True).start()
    try:
        await server.serve([bound])
    finally:
        ended.set()


def take_keys(
    keys: TextIO, offer: Callable[[str], None], loop: asyncio.AbstractEventLoop, end: Callable[[], object]
) -> None:
    """Register the key of each line in the event loop, and call `end` at the end of the input."""
    for line in keys:
        loop.call_soon_threadsafe(offer, line.strip())
    end()


def _offer(sessions: Sessions, key: str) -> None:
    sessions.offer(key)
    print(TAKEN, flush=True)
