"""pyvoy: Envoy serves, with Python embedded, and so the broker runs inside Envoy, in the application's loop.

It begins and ends with the application's lifespan. Each listener of Envoy imports the application for itself,
in a loop of its own: so a process serves either plaintext or TLS here.

`launch` is the process that is started; `app` is what Envoy imports. What the broker needs to know comes in
the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from front_asgi import Application, Receive, Scope, Send
from front_grpc import routes_of

from services.front.certificates import TlsFiles, own_files
from services.rpc.server import Connections, Direct
from services.rpc.service import Observe, Rpc
from services.rpc.turns import Turns

TOLD: Final = "TIDEWHEEL_BENCH_PYVOY"
LOOPBACK: Final = "127.0.0.1"


async def launch(loop: str, store: str, ready: str, flush: str, is_tls: bool) -> None:
    """Run Envoy with the broker inside until SIGTERM."""
    from pyvoy import PyvoyServer

    files = own_files(Path(store).with_name("tls"), [LOOPBACK])
    told = {"store": store, "ready": ready, "flush": flush, "port": free_port(), "is_tls": is_tls}
    server = PyvoyServer(
        "front_pyvoy:app",
        address=LOOPBACK,
        port=told["port"],
        tls_key=files.key if is_tls else None,
        tls_cert=files.certificate if is_tls else None,
        tls_enable_http3=False,
        lifespan=True,
        loop="uvloop" if loop == "uvloop" else "asyncio",
        env={TOLD: json.dumps(told)},
        stderr=None,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        await stop.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        return int(taken.getsockname()[1])


class Pyvoy:
    """Envoy listens already; the broker's table becomes the application's."""

    def __init__(self, connections: Connections | None = None) -> None:
        app.application.host_of = (connections or Direct()).host_of
        told = json.loads(os.environ[TOLD])
        self._port: int = told["port"]
        self.serves_tls, self.serves_plaintext = told["is_tls"], not told["is_tls"]

    def bind(self, host: str, port: int) -> int:
        """Return where Envoy listens."""
        return self._port

    def bind_tls(self, host: str, files: TlsFiles) -> int:
        """Return where Envoy listens."""
        return self._port

    async def start(self, rpcs: dict[str, Rpc], turns: Turns, observe: Observe) -> None:
        """Serve a table of RPCs."""
        app.application.routes = routes_of(rpcs, turns, observe)

    async def stop(self, grace_seconds: float) -> None:
        """Envoy ends when the application has."""


class Embedded:
    """The ASGI application: at its start it runs the broker."""

    def __init__(self) -> None:
        self.application = Application()
        self._stop = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, or live."""
        if scope["type"] != "lifespan":
            await self.application(scope, receive, send)
            return
        await receive()
        broker = asyncio.create_task(self._broker())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._stop.set()
        await broker
        await send({"type": "lifespan.shutdown.complete"})

    async def _broker(self) -> None:
        from front_server import prepare, run_broker

        prepare("of Envoy's choice")
        told: dict[str, Any] = json.loads(os.environ[TOLD])
        await run_broker(Pyvoy, told["store"], told["ready"], told["flush"], self._told_to_stop)

    @contextmanager
    def _told_to_stop(self) -> Iterator[asyncio.Event]:
        """Signals are Envoy's."""
        yield self._stop


app = Embedded()
