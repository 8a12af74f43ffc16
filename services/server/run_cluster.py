"""The composition root of a cluster node: a broker that either follows the shared log of its cluster or
leads.

Start: lock the store, find the cluster in its shared log (`waiting` serves HTTP while the log is
unreachable), serve both ports, and follow. Calls are forwarded as long as another node leads. Stop: stop
leading or following, complete calls in progress, and unlock the store. If the engine has not answered, the
node waits up to `LEAVE_SECONDS`. The next leader finds any append whose result is unknown in the shared log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog

from commitlog import layout, store_format
from services.auth.refusals import Refusals
from services.auth.vault import id_of
from services.broker.broker import Broker
from services.cluster import access
from services.cluster.copies.refetching import AFTER_HALT
from services.cluster.forwarding.calls import CallForwarder
from services.cluster.forwarding.http_calls import ClusterHttp
from services.cluster.forwarding.origin_signatures import verify_origin
from services.cluster.forwarding.switch import ServiceSwitch
from services.cluster.identity import Member
from services.cluster.node import ClusterNode, monotonic_ms
from services.cluster.peers import Identity, follow_certificate
from services.cluster.watching.engine_check import EngineCheck
from services.cluster.watching.scrubbing import LogScrubber
from services.cluster.watching.sessions import SessionTrials
from services.cluster.watching.unanswered import EngineDiagnosis, TimedEngine
from services.front.certificates import make_https_context
from services.http.calls import EVERY_ADDRESS
from services.live.durability import LeadershipProofs
from services.live.live_broker import LiveBroker
from services.process import memory
from services.process.ports import listen_on
from services.process.private_files import GROUP_READS, auth_key, write_for_owner
from services.rpc.wire.endpoints import Advertised
from services.server.authentication import check_exposure, http_demands
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
from services.server.waiting import answered
from services.settings.config import HttpAddress, ServeSettings
from sharedlog.engines import Beginning, SharedLog, engine_of, read_genesis, without_password
from sharedlog.errors import NoCluster
from sharedlog.scrub import Scrub
from sharedlog.versions import SUPPORTED
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError

WORKERS: Final = 8
LEAVE_SECONDS: Final = 10.0
"""How long a stopping node waits for the shared log before it ends without an answer."""
CLIENT_SECONDS: Final = 1.5
"""How long clients have to prove that they are reachable before a leader steps down because of a
complaint.
"""

log = structlog.get_logger()


async def run_node(settings: ServeSettings, announce: Callable[[Ready], None]) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    check_exposure(settings)
    check_settings(settings)
    async with AsyncExitStack() as stack:
        http_socket = stack.enter_context(listen_on(settings.http.bare, "--http"))
        listening = stack.enter_context(listen_on(settings.listen, "--listen"))
        disk = stack.enter_context(opened(settings.store, is_node=True))
        listen, http = addresses(settings, listening, http_socket)
        engine = engine_of(settings.cluster)
        stack.callback(engine.close)
        files_of_tls = tls_files(settings)
        tls = make_https_context(files_of_tls) if http.is_tls else None
        began = await answered(
            partial(found_in, engine, settings.store),
            lambda waiting: serving_http(http_socket.dup(), waiting, tls, noop),
        )
        if began is None:
            engine.abort_calls()
            return
        join(settings.store, began.cluster, settings.node)
        core = replace(core_settings(settings, began.facts["segment_bytes"]), sync_flush=False)
        store_format.open_format(
            disk, core.segment_bytes
        )  # before any other file, so that the folder is a store
        boot = count_boot(settings.store)
        address = advertised(settings, listen, boot)
        executor = stack.enter_context(ThreadPoolExecutor(WORKERS, thread_name_prefix="node"))
        # ends pending engine calls, because the executor waits for its threads
        stack.callback(engine.abort_calls)
        loop, check = asyncio.get_running_loop(), EngineCheck(engine.check_settings, executor)
        watched = TimedEngine(engine, monotonic_ms)
        unanswered = EngineDiagnosis(watched.waiting_ms, watched.answers, check.check_once)
        sessions = SessionTrials(engine.check_session, executor)
        scrubbing = LogScrubber(
            lambda: Scrub(engine, began.cluster, monotonic_ms, lambda: node.needed_records), executor
        )

        @asynccontextmanager
        async def serve(
            leading: Broker, core_released: Callable[[OSError], None], proving: LeadershipProofs
        ) -> AsyncIterator[LiveBroker]:
            live = LiveBroker(
                disk, core, wall_clock_ms, loop.call_later, executor, None, leading, core_released, proving,
                counting_clock_ms,
            )  # fmt: skip
            live.set_share_callback(share_interpreter)
            origins = partial(verify_origin, origin_key)
            endpoints = Endpoints(live, settings, told_by_leader(address, node.epoch), origins)
            endpoints.metrics.watch(port)
            endpoints.metrics.add(app.metrics)
            switch.serve(endpoints.serving)
            live.warnings = app.metrics.warnings
            app.leading, app.metrics.live = endpoints.app, live
            try:
                async with (
                    check.watching(live.refuse_new_messages, live.stop_on_internal_error),
                    scrubbing.watching(live.stop_on_internal_error),
                ):
                    yield live
            finally:
                switch.forward()
                app.leading = app.metrics.live = None
                endpoints.leave()
                await endpoints.close_tasks()
                await live.close()

        where, key = (str(settings.advertise or listen), http.url), shared_key(settings)
        origin_key = key or began.cluster
        me = Member(settings.node, *where, version("tidewheel"), id_of(key), supports=SUPPORTED)
        show = follow_certificate(files_of_tls) if is_over_tls(settings, http) else Identity
        node = ClusterNode(me, began, watched, disk, core, wall_clock_ms, executor, serve, show)
        forwarding = CallForwarder(node, key, wall_clock_ms, origin_key)
        refusals = Refusals(wall_clock_ms)
        stack.push_async_callback(forwarding.close)
        switch = ServiceSwitch(forwarding)
        watches = check, unanswered, scrubbing, sessions
        app = ClusterHttp(node, settings.store, http_demands(settings), refusals, *watches)
        port = make_port(settings, switch, http, refusals, files_of_tls)
        node.probe_clients = partial(port.has_reachable_client, CLIENT_SECONDS)
        await stack.enter_async_context(serving_port(port, listening, forwarding.end_telemetry))
        await stack.enter_async_context(serving_http(http_socket, app, tls, noop))
        running = asyncio.create_task(node.run())
        watching = [
            asyncio.create_task(one)
            for one in (
                *(unanswered.watch(), sessions.watch(), node.clocks.watch()),
                access.keep_files_current(settings.store, settings.http_token, lambda: node.node_urls),
            )
        ]
        for one in watching:
            stack.push_async_callback(ended, one)
        stack.push_async_callback(left, node, running, engine)
        told = stack.enter_context(told_to_stop())
        ready = Ready(listen, http, boot, began.facts["segment_bytes"])
        stack.enter_context(ready_file(settings.ready_file, ready))
        node.on_replica_replaced = memory.WholeLooks(loop.call_later).look_soon
        log.info("node serves", node=settings.node, cluster=without_password(settings.cluster))
        announce(ready)
        ends: set[asyncio.Future[Any]] = {told, running, *watching}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for one in (running, *watching):
            if one.done():
                one.result()


def told_by_leader(address: Advertised, epoch: int) -> Advertised:
    """Return the address settings of a leader.

    Clients always get the address that they dialled. `--advertise` is ignored, because it is the address of
    this node for other nodes and would change with the leader. For clients that must redial, an epoch
    corresponds to a boot of a single broker.
    """
    return replace(address, boot=epoch, fixed=False)


async def left(node: ClusterNode, running: asyncio.Task[None], engine: SharedLog) -> None:
    """Stop a node and wait until it has stopped. If the engine has not answered, the wait is limited."""
    node.leave()
    await asyncio.wait({running}, timeout=LEAVE_SECONDS)
    if not running.done():
        log.warning("waits for the shared log no longer", seconds=LEAVE_SECONDS, role=node.role.value)
        engine.abort_calls()
    await running


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task that runs indefinitely and wait for its end."""
    task.cancel()
    await asyncio.wait({task})


def noop() -> None:
    """Do nothing, because a node's services end with its core."""


def check_settings(settings: ServeSettings) -> None:
    """Validate the settings of a node. Raises `ConfigurationError`."""
    if not settings.node:
        raise ConfigurationError(
            "--cluster needs --node NAME: the name of this node, its own in the cluster."
        )
    if settings.auth and not settings.auth_key:
        raise ConfigurationError(
            "--auth in a cluster needs --auth-key FILE: the same key on all nodes, as any of them may lead."
        )
    for flag, address in (("--listen", settings.advertise or settings.listen), ("--http", settings.http)):
        if address.host in EVERY_ADDRESS:
            raise ConfigurationError(
                f"{flag} {address.host} is no address at which other nodes reach this one: name the one that "
                "they use."
            )
    if settings.clock == "virtual":
        raise ConfigurationError("--clock virtual is for a broker alone: nodes of a cluster share real time.")


def is_over_tls(settings: ServeSettings, http: HttpAddress) -> bool:
    """Return whether other nodes connect to this node over TLS.

    They always do if other machines can reach it.
    """
    reached = [settings.listen, *([settings.advertise] if settings.advertise else [])]
    return settings.is_tls_only or http.is_tls or not all(is_loopback(one.host) for one in reached)


def shared_key(settings: ServeSettings) -> bytes:
    """Return the common key for user secrets, or an empty value if there is none."""
    return auth_key(settings.auth_key, may_make=True) if settings.auth_key else b""


def found_in(engine: SharedLog, store: Path) -> Beginning:
    """Return the cluster of a shared log.

    `NoCluster` includes the next step; `EngineUnavailable` is also raised.
    """
    try:
        return read_genesis(engine)
    except NoCluster as error:
        begin = "To begin one there: tidewheel cluster create URL."
        if (store / layout.CLUSTER).exists():
            begin = f"The store {store} is of one that was, which the URL may not name. {AFTER_HALT}"
        raise NoCluster(f"{error.detail} {begin}") from error


def join(store: Path, cluster: bytes, node: str) -> None:
    """Record the cluster and node in the store; raise `ConfigurationError` if it belongs to another node.

    The store of a single broker is refused, because its content is not in the shared log.
    """
    path, me = store / layout.CLUSTER, {"cluster": cluster.hex(), "node": node}
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise ConfigurationError(
                f"{path} does not say which node's store this is: its disk has lost that. Give node {node!r} "
                "an empty --store: it gets the copy of another."
            ) from error
        if found != me:
            raise ConfigurationError(
                f"The store {store} is node {found['node']!r} of cluster {found['cluster']}, not {node!r} of "
                f"{cluster.hex()}: give this node another --store. If the shared log of that one is gone: "
                "tidewheel cluster restore NEW-URL --from STORE"
            )
        return
    if any((store / layout.COMMITLOG).glob("*")):
        raise ConfigurationError(
            f"The store {store} was a broker's alone: its messages are not in the shared log. Give the node "
            "an empty --store."
        )
    write_for_owner(path, json.dumps(me) + "\n", GROUP_READS)
