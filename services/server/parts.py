"""Common parts of a broker and a cluster node: clocks, disk, ports, and the ready file.

`run.py` assembles a broker from them, and `run_cluster.py` a node.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
from starlette.types import ASGIApp

from commitlog import store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.lock import StoreLock
from services.auth.refusals import Refusals
from services.explain.evidence import Folder
from services.front.admission import Limits
from services.front.certificates import TlsFiles, ensure_own_files, make_grpc_context_source
from services.front.connection import ServerState, Service
from services.front.port import Port
from services.live.clients.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.entrance import ConsoleLink
from services.ops.http_server import HttpServer
from services.ops.metrics.broker_metrics import Metrics
from services.process.ending import signals_to_end
from services.process.private_files import EVERYBODY_READS, GROUP_READS, write_whole
from services.rpc.clients.consumers import each_consumer
from services.rpc.clients.questions import ClientQueries
from services.rpc.clients.sessions import Sessions
from services.rpc.health import Health, standard_rpcs
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.serving import OriginOf, Serving, not_forwarded
from services.rpc.serving.turns import CallScheduler
from services.rpc.wire.endpoints import Advertised
from services.server.authentication import authentication, is_http_tls
from services.settings.config import Address, HttpAddress, ServeSettings
from tidewheel.errors import ConfigurationError

GRACE_SECONDS = 2.0
SWITCH_SECONDS = 0.00002
CROWDED_SWITCH_SECONDS = 0.0005
"""How long a busy worker thread may hold the interpreter while the event loop waits.

Python's default is 5 ms.

Measured: with 2,000 timers per second, the shorter interval halves the 99th percentile of lateness. With a
million timers due at once, it gives the event loop so many more iterations between ticks that sends take four
times as long.
"""

log = structlog.get_logger()


class Ready(NamedTuple):
    """A running broker: its addresses, the number of starts of its store, and the size of its log files."""

    listen: Address
    http: HttpAddress
    boot: int
    segment_bytes: int


def wall_clock_ms() -> int:
    """Return wall-clock time in milliseconds, rounded down so that the broker's time never runs ahead."""
    return time.time_ns() // 1_000_000


def counting_clock_ms() -> float:
    """Return monotonic time in milliseconds. It does not advance while the machine is suspended."""
    return time.monotonic_ns() / 1_000_000


def share_interpreter(is_crowded: bool) -> None:
    """Set the switch interval between the event loop and the worker threads."""
    sys.setswitchinterval(CROWDED_SWITCH_SECONDS if is_crowded else SWITCH_SECONDS)


class Endpoints:
    """The gRPC service and the HTTP application of a broker."""

    def __init__(
        self,
        live: LiveBroker,
        settings: ServeSettings,
        address: Advertised,
        origin_of: OriginOf = not_forwarded,
        console: ConsoleLink | None = None,
    ) -> None:
        self._live = live
        self._sessions = sessions = Sessions(wall_clock_ms, counting_clock_ms)
        consuming, questions = partial(each_consumer, sessions), ClientQueries(sessions)
        self.asked = asked = authentication(settings, live, wall_clock_ms)
        sessions.room.set_refusal_callback(asked.refusals.add)
        measured = ClientMetrics(wall_clock_ms()) if settings.client_metrics == "on" else None
        self.metrics = Metrics(live, sessions, consuming, asked.refusals.counts, measured)
        rpcs = all_rpcs(live, sessions, address, asked.guard, questions, measured)
        self.health = Health()
        served = rpcs | standard_rpcs(self.health, rpcs)
        self.serving = Serving(served, CallScheduler(live), self.metrics.observe, origin_of)
        self.app = make_app(
            live,
            self.metrics,
            consuming,
            Folder(settings.store),
            asked.refusals,
            asked.demands,
            questions,
            measured,
            console,
        )

    def leave(self) -> None:
        """End long polls and streams. Calls in progress continue."""
        self.health.leave()
        self._live.receivers.close()
        self._sessions.close()

    async def close_tasks(self) -> None:
        """End the tasks that operators have started over HTTP."""
        for tasks in self.app.state.tasks:
            await tasks.close()


def addresses(
    settings: ServeSettings, listening: socket.socket, http_socket: socket.socket
) -> tuple[Address, HttpAddress]:
    """Return the addresses of the gRPC port and the HTTP port."""
    http_host, http_port = http_socket.getsockname()[:2]
    listen = Address(*listening.getsockname()[:2])
    return listen, HttpAddress(http_host, http_port, is_http_tls(settings))


def make_port(
    settings: ServeSettings, service: Service, http: HttpAddress, refusals: Refusals, files: TlsFiles
) -> Port:
    """Return the gRPC port of a broker."""
    return Port(
        ServerState(service),
        Limits(settings.connections_per_address),
        http.url,
        partial(tell_refused, refusals),
        make_grpc_context_source(files),
        has_plaintext=not settings.is_tls_only,
        requires_authentication=settings.auth,
    )


@contextmanager
def opened(root: Path, *, is_node: bool = False) -> Iterator[RealDisk]:
    """Lock a store and yield its disk. No file of the store is read before the lock is acquired.

    Raises `NotAStore` if the folder contains other files, before a file is created in it.
    """
    if not is_node and root.is_dir():
        store_format.check_names(os.listdir(root))
    lock = StoreLock(root, is_node=is_node)
    lock.acquire()
    if stat.S_IMODE(root.stat().st_mode) & stat.S_IRWXO:
        log.warning("others on this machine may look into the store: chmod o= it", store=str(root))
    disk = RealDisk(root)
    try:
        yield disk
    finally:
        disk.close()
        lock.release()


def count_boot(root: Path) -> int:
    """Increment the number of starts in the `boots` file of a store. Returns 0 for the first start.

    Call this function only after the folder is known to be a store, so that no file is created in other
    folders. A power failure may leave the file empty, in which case the count restarts at 1. A disk error
    does not prevent the start, because the number only distinguishes starts for clients.
    """
    counter, boot = root / "boots", 1
    try:
        counted = counter.read_text(errors="replace").strip() if counter.exists() else "-1"
        boot = int(counted) + 1 if counted.removeprefix("-").isdecimal() else 1
        write_whole(counter, f"{boot}\n", GROUP_READS)
    except OSError as error:
        log.warning("this start is not counted", reason=str(error))
    return boot


def advertised(settings: ServeSettings, listen: Address, boot: int) -> Advertised:
    """Return the address that clients get: the fixed address, or the address that they dialled."""
    host, port = settings.advertise or listen
    return Advertised(host, port, boot, fixed=settings.advertise is not None)


@asynccontextmanager
async def serving_port(
    port: Port, listening: socket.socket, leave: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve the gRPC port. At exit, calls in progress are completed within the grace period."""
    port.start(listening)
    try:
        yield
    finally:
        leave()
        await port.shut_down(GRACE_SECONDS)


def tls_files(settings: ServeSettings) -> TlsFiles:
    """Return the TLS certificate files; raise `ConfigurationError` if only the certificate or the key is
    given.
    """
    given = settings.tls_certificate, settings.tls_key
    if given[0] and given[1]:
        return TlsFiles(given[0], given[1], settings.tls_clients)
    if any(given):
        raise ConfigurationError("--tls-certificate and --tls-key go together: give both or none.")
    hosts = [settings.listen.host, settings.advertise.host if settings.advertise else ""]
    return ensure_own_files(settings.store / "tls", hosts, settings.tls_clients)


def tell_refused(refusals: Refusals, why: str, host: str, detail: str) -> None:
    """Record a connection that the gRPC port has refused."""
    refusals.add(why, host, detail or "connection")
    log.warning("connection refused", why=why, host=host, **({"detail": detail} if detail else {}))


@asynccontextmanager
async def serving_http(
    bound: socket.socket, app: ASGIApp, tls: ssl.SSLContext | None, leave: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve the HTTP interface on a listening socket. At exit, open long polls are ended."""
    server = HttpServer(app, tls)
    serving = asyncio.create_task(server.serve([bound]))
    try:
        yield
    finally:
        leave()
        server.should_exit = True
        await serving


@contextmanager
def ready_file(path: Path | None, ready: Ready) -> Iterator[None]:
    """Write the ready file with the addresses of the broker. It is deleted when the broker stops."""
    if path is None:
        yield
        return
    facts = {
        "listen": str(ready.listen),
        "http": str(ready.http),
        "http_url": ready.http.url,
        "pid": os.getpid(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(facts) + "\n", EVERYBODY_READS)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def told_to_stop() -> Iterator[asyncio.Future[str]]:
    """Yield a future that the first termination signal sets to its name."""
    loop, signals = asyncio.get_running_loop(), signals_to_end()
    told: asyncio.Future[str] = loop.create_future()

    def tell(name: str) -> None:
        if not told.done():
            told.set_result(name)

    for number in signals:
        loop.add_signal_handler(number, tell, number.name)
    try:
        yield told
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
