"""The composition root of a broker, which creates and connects the parts (`services.server.parts`).

Start: bind the addresses, lock the store, open the core, count the boot, serve gRPC, serve HTTP, and announce
the broker. Stop (SIGTERM, SIGHUP, Ctrl-C): long polls and streams are ended, calls in progress get
`GRACE_SECONDS`, the log is flushed, and the store is unlocked. A second Ctrl-C ends the process immediately,
like `kill -9`. Acknowledged messages are on disk.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import structlog

from commitlog import limits
from commitlog.disk.disk import Disk
from commitlog.errors import disk_error
from commitlog.room import choose_segment_bytes
from services.broker.broker import Broker
from services.front.certificates import make_https_context
from services.live.clock import open_clock_offset
from services.live.live_broker import LiveBroker
from services.process import logs, memory
from services.process.event_loop import new_event_loop
from services.process.open_files import allow_many_files
from services.process.ports import listen_on
from services.server.authentication import check_exposure
from services.server.console import ConsoleProcess
from services.server.core_settings import core_settings
from services.server.parts import (
    Endpoints,
    Ready,
    addresses,
    advertised,
    count_boot,
    counting_clock_ms,
    make_port,
    opened,
    ready_file,
    serving_http,
    serving_port,
    share_interpreter,
    tls_files,
    told_to_stop,
    wall_clock_ms,
)
from services.settings.config import ServeSettings, ignored_variables
from services.settings.errors import UnknownSetting

log = structlog.get_logger()


def serve(settings: ServeSettings, announce: Callable[[Ready], None]) -> None:
    """Run a broker until SIGTERM, SIGHUP or Ctrl-C. `announce` is called when it is ready.

    Raises `PortTaken`, `StoreError` or `ConfigurationError` if the broker cannot start. A file error of the
    operating system at start or stop is raised as a `StoreError` that names the file.
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

            engine_of(settings.cluster)  # so that a missing library is reported before anything is opened
            from services.server.run_cluster import run_node

            runner.run(run_node(settings, announce))
        else:
            runner.run(run(settings, announce))


async def run(settings: ServeSettings, announce: Callable[[Ready], None]) -> None:
    """Start all parts, serve, and stop them in reverse order."""
    check_exposure(settings)
    async with AsyncExitStack() as stack:
        shutdown = stack.enter_context(telling_shutdown())
        http_socket = stack.enter_context(listen_on(settings.http.bare, "--http"))
        listening = stack.enter_context(listen_on(settings.listen, "--listen"))
        disk = stack.enter_context(opened(settings.store))
        live = await stack.enter_async_context(open_live_broker(disk, settings))
        boot = count_boot(settings.store)
        live.set_share_callback(share_interpreter)
        listen, http = addresses(settings, listening, http_socket)
        files_of_tls = tls_files(settings)
        console = ConsoleProcess(http, files_of_tls.certificate)
        stack.push_async_callback(console.close)
        endpoints = Endpoints(live, settings, advertised(settings, listen, boot), console=console.link)
        port = make_port(settings, endpoints.serving, http, endpoints.asked.refusals, files_of_tls)
        endpoints.metrics.watch(port)
        live.set_health_callback(endpoints.health.tell)
        await stack.enter_async_context(serving_port(port, listening, endpoints.leave))
        tls = make_https_context(files_of_tls) if http.is_tls else None
        stack.push_async_callback(endpoints.close_tasks)
        await stack.enter_async_context(serving_http(http_socket, endpoints.app, tls, live.receivers.close))
        told = stack.enter_context(told_to_stop())
        ready = Ready(listen, http, boot, live.core.segment_bytes)
        stack.enter_context(ready_file(settings.ready_file, ready))
        memory.WholeLooks(asyncio.get_running_loop().call_later)
        log.info("serving", listen=str(ready.listen), http=str(ready.http), boot=boot, pid=os.getpid())
        announce(ready)
        shutdown.begin(await until(told, live), live)


@asynccontextmanager
async def open_live_broker(disk: Disk, settings: ServeSettings) -> AsyncIterator[LiveBroker]:
    """Open the core in this event loop, with worker threads for flushes, snapshots, retention and reading
    ahead.
    """
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 4, thread_name_prefix="worker") as workers:
        call_later = asyncio.get_running_loop().call_later
        kept = open_clock_offset(disk, settings.clock)
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
    """Convert a file error of the operating system to a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, doing, "Then start again.") from error


def tell_recovery(core: Broker, took_ms: int) -> None:
    """Log the content of the store at its opening, the duration, and any damage.

    A clean stop leaves a checkpoint of the whole log. The log after the newest checkpoint was replayed.
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
    for what in core.rebuilt_files:
        log.warning("made anew from the log", what=what)
    for what in core.startup_warnings:
        log.error("store file damaged, written anew", what=what)


async def until(told: asyncio.Future[str], live: LiveBroker) -> str:
    """Return the name of the termination signal, or raise the error that broke the core."""
    futures: set[asyncio.Future[Any]] = {told, live.broken}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if live.broken.done():
        live.broken.result()
    return told.result()


class Shutdown:
    """Log messages of a shutdown: reason, bytes to flush, flushed bytes, and duration."""

    def __init__(self) -> None:
        self._live: LiveBroker | None = None
        self._why, self._began_s, self._durable_offset = "", 0.0, 0

    def begin(self, why: str, live: LiveBroker) -> None:
        """Record the start of a shutdown."""
        self._why, self._live, self._began_s = why, live, time.monotonic()
        self._durable_offset = live.core.durable_offset
        end_offset = live.core.gauges().log_end_offset
        log.info("stopping", why=why, unflushed_bytes=end_offset - self._durable_offset)

    def end(self) -> None:
        """Log the end of a shutdown."""
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
    """Log the end of the shutdown, unless the block raises an error, which is reported separately."""
    shutdown = Shutdown()
    yield shutdown
    shutdown.end()
