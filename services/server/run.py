"""The composition root: the only file that makes real clocks, disks, sockets and threads, and joins them.

Start: are the addresses free? Lock the store, open the core, count the boot, serve the protocol port, serve
HTTP, say so. Stop (SIGTERM, SIGHUP, Ctrl-C): long polls and streams end, calls under way get
`GRACE_SECONDS`, the log is flushed, the store is unlocked. A second Ctrl-C ends the process where it stands,
as `kill -9` would: what was acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from starlette.types import ASGIApp

from commitlog import limits, store_format
from commitlog.disk import Disk
from commitlog.errors import disk_error
from commitlog.lock import StoreLock
from commitlog.real_disk import RealDisk
from commitlog.room import choose_segment_bytes
from services.auth.refusals import Refusals
from services.broker.broker import Broker
from services.explain.evidence import Folder
from services.front.admission import Limits
from services.front.certificates import TlsFiles, grpc_contexts, https_context, own_files
from services.front.connection import Service, Shared
from services.front.port import Port
from services.live.client_metrics import ClientMetrics
from services.live.clock import kept_offset
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.entrance import ConsoleLink
from services.ops.http_server import HttpServer
from services.ops.metrics import Metrics
from services.process import logs, memory
from services.process.ending import signals_to_end
from services.process.event_loop import new_event_loop
from services.process.ports import listen_on
from services.process.private_files import EVERYBODY_READS, GROUP_READS, write_whole
from services.rpc.clients.consumers import each_consumer
from services.rpc.clients.questions import Questions
from services.rpc.clients.sessions import Sessions
from services.rpc.health import Health, standard_rpcs
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.serving import OriginOf, Serving, not_forwarded
from services.rpc.serving.turns import Turns
from services.rpc.wire.endpoints import Advertised
from services.server.authentication import authentication, check_exposure, is_http_tls
from services.server.console import ConsoleProcess
from services.server.core_settings import core_settings
from services.settings.config import Address, HttpAddress, ServeSettings, ignored_variables
from services.settings.errors import UnknownSetting
from tidewheel.errors import ConfigurationError

GRACE_SECONDS = 2.0
SWITCH_SECONDS = 0.00002
CROWDED_SWITCH_SECONDS = 0.0005
"""How long a busy worker may hold the interpreter while the loop waits; Python's own is 5 ms.

Measured: with 2,000 timers a second the shorter halves the lateness of the slowest hundredth; with a million
due at once it would give the loop so many more turns between ticks that sends took four times as long.
"""

log = structlog.get_logger()


class Ready(NamedTuple):
    """A broker that serves: where it listens, how often its store was opened, how large its log files are."""

    listen: Address
    http: HttpAddress
    boot: int
    segment_bytes: int


def wall_clock_ms() -> int:
    """Return wall time in whole milliseconds, rounded down: the broker's time never runs ahead."""
    return time.time_ns() // 1_000_000


def counting_clock_ms() -> float:
    """Return milliseconds by a clock that nobody sets; while the machine is suspended it stands still."""
    return time.monotonic_ns() / 1_000_000


def serve(settings: ServeSettings, announce: Callable[[Ready], None]) -> None:
    """Run a broker until SIGTERM, SIGHUP or Ctrl-C; `announce` is called once it serves.

    Raise `PortTaken`, `StoreError` or `ConfigurationError` when it cannot start. Whatever the system
    refuses of a file on the way, at the start or at the end, is a `StoreError` that names the file.
    """
    memory.keep_little()
    logs.configure(settings.log_level, settings.log_format)
    for sentence in ignored_variables():
        log.warning("a variable is ignored", code=UnknownSetting.code, why=sentence)
    allow_many_files()
    share_interpreter(is_crowded=False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner, telling("Running the broker"):
        if settings.cluster:
            from sharedlog.engines import engine_of

            engine_of(settings.cluster)  # what its extra brings is missed before anything needs it
            from services.server.run_cluster import run_node

            runner.run(run_node(settings, announce))
        else:
            runner.run(run(settings, announce))


def share_interpreter(is_crowded: bool) -> None:
    """Give the event loop and the worker threads their parts of the interpreter."""
    sys.setswitchinterval(CROWDED_SWITCH_SECONDS if is_crowded else SWITCH_SECONDS)


def allow_many_files() -> None:
    """Let the process open as many files as it may at all: queues and partitions of time keep theirs open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run(settings: ServeSettings, announce: Callable[[Ready], None]) -> None:
    """Build everything from the ground up, serve, and take it down again from the top."""
    check_exposure(settings)
    async with AsyncExitStack() as stack:
        shutdown = stack.enter_context(telling_shutdown())
        http_socket = stack.enter_context(listen_on(settings.http.bare, "--http"))
        listening = stack.enter_context(listen_on(settings.listen, "--listen"))
        disk = stack.enter_context(opened(settings.store))
        live = await stack.enter_async_context(open_live_broker(disk, settings))
        boot = count_boot(settings.store)
        live.share_with(share_interpreter)
        listen, http = addresses(settings, listening, http_socket)
        files_of_tls = tls_files(settings)
        console = ConsoleProcess(http, files_of_tls.certificate)
        stack.push_async_callback(console.close)
        endpoints = Endpoints(live, settings, advertised(settings, listen, boot), console=console.link)
        port = make_port(settings, endpoints.serving, http, endpoints.asked.refusals, files_of_tls)
        endpoints.metrics.watch(port)
        live.tell_health_to(endpoints.health.tell)
        await stack.enter_async_context(serving_port(port, listening, endpoints.leave))
        tls = https_context(files_of_tls) if http.is_tls else None
        stack.push_async_callback(endpoints.close_tasks)
        await stack.enter_async_context(serving_http(http_socket, endpoints.app, tls, live.receivers.close))
        told = stack.enter_context(told_to_stop())
        ready = Ready(listen, http, boot, live.core.segment_bytes)
        stack.enter_context(ready_file(settings.ready_file, ready))
        memory.WholeLooks(asyncio.get_running_loop().call_later)
        log.info("serving", listen=str(ready.listen), http=str(ready.http), boot=boot, pid=os.getpid())
        announce(ready)
        shutdown.begin(await until(told, live), live)


class Endpoints:
    """What a broker shows: the service of its protocol port, and the application of its HTTP interface."""

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
        consuming, questions = partial(each_consumer, sessions), Questions(sessions)
        self.asked = asked = authentication(settings, live, wall_clock_ms)
        sessions.room.refuse_with(asked.refusals.add)
        measured = ClientMetrics(wall_clock_ms()) if settings.client_metrics == "on" else None
        self.metrics = Metrics(live, sessions, consuming, asked.refusals.counts, measured)
        rpcs = all_rpcs(live, sessions, address, asked.guard, questions, measured)
        self.health = Health()
        served = rpcs | standard_rpcs(self.health, rpcs)
        self.serving = Serving(served, Turns(live), self.metrics.observe, origin_of)
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
        """End long polls and streams; calls under way go on."""
        self.health.leave()
        self._live.receivers.close()
        self._sessions.close()

    async def close_tasks(self) -> None:
        """End what operators have begun over HTTP and still runs."""
        for tasks in self.app.state.tasks:
            await tasks.close()


def addresses(
    settings: ServeSettings, listening: socket.socket, http_socket: socket.socket
) -> tuple[Address, HttpAddress]:
    """Return where a broker listens: for clients, and for HTTP."""
    http_host, http_port = http_socket.getsockname()[:2]
    listen = Address(*listening.getsockname()[:2])
    return listen, HttpAddress(http_host, http_port, is_http_tls(settings))


def make_port(
    settings: ServeSettings, service: Service, http: HttpAddress, refusals: Refusals, files: TlsFiles
) -> Port:
    """Return the protocol port of a broker."""
    return Port(
        Shared(service),
        Limits(settings.connections_per_address),
        http.url,
        partial(tell_refused, refusals),
        grpc_contexts(files),
        has_plaintext=not settings.is_tls_only,
        asks_callers=settings.auth,
    )


@contextmanager
def opened(root: Path, *, is_node: bool = False) -> Iterator[RealDisk]:
    """Lock a store and give its disk; nothing of the store is read before the lock is held.

    Raise `NotAStore` for a folder of something else, before a file is made in it.
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
    """Count one more start of a store, in its file `boots`; return 0 the first time.

    Call it when the folder is known to be a store: a folder that is refused gets no file of ours.
    A power cut may leave that file empty; then counting begins again at 1. A disk that is full or fails keeps
    nobody from starting here: the number only tells clients of two starts apart.
    """
    counter, boot = root / "boots", 1
    try:
        counted = counter.read_text(errors="replace").strip() if counter.exists() else "-1"
        boot = int(counted) + 1 if counted.removeprefix("-").isdecimal() else 1
        write_whole(counter, f"{boot}\n", GROUP_READS)
    except OSError as error:
        log.warning("this start is not counted", reason=str(error))
    return boot


@asynccontextmanager
async def open_live_broker(disk: Disk, settings: ServeSettings) -> AsyncIterator[LiveBroker]:
    """Open the core in this loop, with threads for flushes, a snapshot, retention and reading ahead."""
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 4, thread_name_prefix="worker") as workers:
        call_later = asyncio.get_running_loop().call_later
        kept = kept_offset(disk, settings.clock)
        core = core_settings(settings, choose_segment_bytes(disk, settings.segment_bytes))
        began_s = time.monotonic()
        live = LiveBroker(disk, core, wall_clock_ms, call_later, workers, kept, counted_ms=counting_clock_ms)
        tell_recovery(live.core, round((time.monotonic() - began_s) * 1000))
        try:
            yield live
        finally:
            await live.close()


@contextmanager
def telling(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses of a file into an error that says so."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, doing, "Then start again.") from error


def tell_recovery(core: Broker, took_ms: int) -> None:
    """Log what a store held when it was opened, how long that took, and what of it is damaged.

    A clean stop leaves a checkpoint of all of the log; what is behind the newest one was replayed.
    """
    found = core.gauges()
    if replayed_bytes := core.durable_offset - core.written_offset:
        log.warning(
            "the last stop was not clean: log replayed",
            from_offset=core.written_offset,
            replayed_bytes=replayed_bytes,
            took_ms=took_ms,
        )
    log.info(
        "store opened",
        topics=found.topic_count,
        pending_timers=found.pending_timers,
        open_halves=found.open_halves,
        log_end_offset=found.log_end_offset,
        took_ms=took_ms,
    )
    for what in core.made_anew:
        log.warning("made anew from the log", what=what)
    for what in core.unsound:
        log.error("store file damaged, written anew", what=what)


def advertised(settings: ServeSettings, listen: Address, boot: int) -> Advertised:
    """Return what clients are told: the fixed address, or what they dialled."""
    host, port = settings.advertise or listen
    return Advertised(host, port, boot, fixed=settings.advertise is not None)


@asynccontextmanager
async def serving_port(
    port: Port, listening: socket.socket, leave: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve the protocol port; on the way out calls under way end, for so long as they may take."""
    port.start(listening)
    try:
        yield
    finally:
        leave()
        await port.leave(GRACE_SECONDS)


def tls_files(settings: ServeSettings) -> TlsFiles:
    """Return the certificate to serve TLS with; raise `ConfigurationError` for half of one."""
    given = settings.tls_certificate, settings.tls_key
    if given[0] and given[1]:
        return TlsFiles(given[0], given[1], settings.tls_clients)
    if any(given):
        raise ConfigurationError("--tls-certificate and --tls-key go together: give both or none.")
    hosts = [settings.listen.host, settings.advertise.host if settings.advertise else ""]
    return own_files(settings.store / "tls", hosts, settings.tls_clients)


def tell_refused(refusals: Refusals, why: str, host: str, detail: str) -> None:
    """Note whom the protocol port has sent away."""
    refusals.add(why, host, detail or "connection")
    log.warning("connection refused", why=why, host=host, **({"detail": detail} if detail else {}))


@asynccontextmanager
async def serving_http(
    bound: socket.socket, app: ASGIApp, tls: ssl.SSLContext | None, leave: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve the HTTP interface on a socket that listens already; on the way out no poll is waited for."""
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
    """Write the file that says that, and where, the broker serves; it goes when the broker does."""
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
    """Give what the first signal to end sets to its name; in force before anybody knows that we serve."""
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


async def until(told: asyncio.Future[str], live: LiveBroker) -> str:
    """Return the signal that told us to stop; raise what broke the core, if anything does."""
    futures: set[asyncio.Future[Any]] = {told, live.broken}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if live.broken.done():
        live.broken.result()
    return told.result()


class Shutdown:
    """What the log tells of a stop: why, what was left to flush, what was flushed, how long it took."""

    def __init__(self) -> None:
        self._live: LiveBroker | None = None
        self._why, self._began_s, self._durable_offset = "", 0.0, 0

    def begin(self, why: str, live: LiveBroker) -> None:
        """Take in a signal."""
        self._why, self._live, self._began_s = why, live, time.monotonic()
        self._durable_offset = live.core.durable_offset
        end_offset = live.core.gauges().log_end_offset
        log.info("stopping", why=why, unflushed_bytes=end_offset - self._durable_offset)

    def end(self) -> None:
        """Everything has been taken down."""
        if self._live is not None:
            durable_offset = self._live.core.durable_offset
            took_ms = round((time.monotonic() - self._began_s) * 1000)
            flushed_bytes = durable_offset - self._durable_offset
            log.info(
                "stopped",
                why=self._why,
                took_ms=took_ms,
                flushed_bytes=flushed_bytes,
                durable_offset=durable_offset,
            )


@contextmanager
def telling_shutdown() -> Iterator[Shutdown]:
    """Log the end of what happens in the block, unless it ends by an error, which tells of itself."""
    shutdown = Shutdown()
    yield shutdown
    shutdown.end()
