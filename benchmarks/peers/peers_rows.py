"""The rows: loads on a server, and their figures.

Each run of a row has a new topic and group. Rates are those of a window in the middle: workers run before it
begins and after it ends. Messages to be received are stored beforehand; then the window begins with the first
receive, and ends early if all have been received. The server's processor time is that of the same window, per
message (per pair of calls in `half`); `load_busy` is the share of a core used by the load itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import peers_calls as calls
from peers_fields import changing_fields, stable_fields
from peers_http2 import Asked, Connection, Failures, LoadFailed, Worker, connect
from peers_servers import Server

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

CONNECTIONS, STREAMS, CONSUMERS = 16, 8, 16
RUN_UP_SECONDS, END_SECONDS, FIRST_SECONDS, TELEMETRY_SECONDS = 0.5, 30.0, 15.0, 10.0
PER_CALL: Final = 16
FILL_PER_SECOND, FILL_WARMING = 25_000, 5_000
LATER_SECONDS: Final = 2 * 3_600
PACE_PER_SECOND: Final = 500
CROWD, CROWD_PROBE, CROWD_LEAD_SECONDS, CROWD_PATIENCE_SECONDS = 20_000, 1_000, 2.0, 60.0
TYPES: Final = {"NORMAL": wire.NORMAL, "DELAY": wire.DELAY, "TRANSACTION": wire.TRANSACTION}
Figures = dict[str, float]
_runs: Final = count(1)


@dataclass
class Load:
    """Connections to a server, and their counters."""

    server: Server
    kind: str
    topic: str
    group: str
    is_tls: bool = False
    is_warming: bool = False
    done: int = 0
    took_s: list[float] = field(default_factory=list)
    goes_on: bool = True
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    connections: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.failures = Failures(self.finished.set)

    async def connect(self, number: int, settings: bytes) -> list[Connection]:
        """Return `number` new connections, each a client whose settings the server has accepted."""
        return [await self._client(settings) for _ in range(number)]

    async def producers(self, number: int) -> list[Connection]:
        """Return connections of producers."""
        return await self.connect(number, calls.producer_settings(self.topic))

    async def consumers(self, number: int) -> list[Connection]:
        """Return connections of consumers."""
        return await self.connect(number, calls.consumer_settings(self.topic, self.group))

    async def _client(self, settings: bytes) -> Connection:
        client_id = f"load@{os.getpid()}@{next(_runs)}"
        stable = stable_fields(self.kind, client_id, is_tls=self.is_tls)
        made = await connect(
            self.server.address, stable, changing_fields(self.kind), self.failures, is_tls=self.is_tls
        )
        self.connections.append(made)
        ends = time.monotonic() + TELEMETRY_SECONDS
        while True:
            try:
                answer = await asyncio.wait_for(made.open(calls.TELEMETRY, settings), TELEMETRY_SECONDS)
                status = service.TelemetryCommand.FromString(answer[5:]).status
                if status.code == wire.OK:
                    return made
                why = calls.said(status)
            except LoadFailed as error:
                why = str(error)
            if time.monotonic() > ends:
                raise LoadFailed(f"Telemetry was refused for {TELEMETRY_SECONDS:g} s: {why}")
            await asyncio.sleep(0.1)

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.close()

    # Workers.

    def unary(self, request: Callable[[], Asked], counted: int = 1) -> Worker:
        """Make calls until the load ends."""
        while self.goes_on:
            began = time.perf_counter()
            calls.check((yield request()))
            self.took_s.append(time.perf_counter() - began)
            self.done += counted

    def so_many(self, request: Callable[[], Asked], left: Iterator[Any], counted: int = 1) -> Worker:
        """Make one call for each item of an iterator shared by all workers."""
        for _ in left:
            calls.check((yield request()))
            self.done += counted

    def halves(self) -> Worker:
        """Send half messages and commit them until the load ends."""
        request = calls.sending(self.topic, wire.TRANSACTION)
        while self.goes_on:
            began = time.perf_counter()
            half = calls.sent_entry((yield request()))
            calls.check((yield calls.committing(self.topic, half)))
            self.took_s.append(time.perf_counter() - began)
            self.done += 1

    def receives(self, of_all: int, *, is_each: bool, note: Callable[[Any], None] | None = None) -> Worker:
        """Receive and acknowledge, in one call or one per message, until the load ends.

        Set `finished` when `of_all` messages have been received.
        """
        asked = calls.receiving(self.topic, self.group)
        while self.goes_on:
            began = time.perf_counter()
            messages = calls.received((yield asked))
            if note is not None:
                for message in messages:
                    note(message)
            if messages and is_each:
                for reply in (yield [self._acknowledging([message]) for message in messages]):
                    calls.check(reply)
            elif messages:
                calls.check((yield self._acknowledging(messages)))
            self.took_s.append(time.perf_counter() - began)
            self.done += len(messages)
            if self.done >= of_all:
                self.finished.set()

    def _acknowledging(self, messages: list[Any]) -> Asked:
        return calls.acknowledging(self.topic, self.group, messages)


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    title: str
    run: Callable[[Load, float], Awaitable[Figures]]
    message_type: str = "NORMAL"
    is_tls: bool = False
    is_last: bool = False
    """Whether to measure after all others: RocketMQ spins on a core from its first transaction on."""
    merges_pops: bool = False
    """Whether RocketMQ has `enablePopBufferMerge`; measured only with `--flush sync`."""


async def measure(
    row: Row, server: Server, kind: str, seconds: float, *, is_warming: bool = False
) -> Figures:
    """Run a row once on a new topic; return its figures."""
    name = f"peers-{os.getpid()}-{next(_runs)}"
    load = Load(server, kind, name, f"g-{name}", row.is_tls, is_warming)
    server.make_topic(load.topic, row.message_type)
    server.make_group(load.group)
    try:
        await first_call(load, TYPES[row.message_type])
        return await row.run(load, seconds)
    finally:
        load.close()


async def first_call(load: Load, message_type: wire.MessageType) -> None:
    """Send until the topic accepts a message; this message is not part of the row."""
    ends = time.monotonic() + FIRST_SECONDS
    due_s = int(time.time()) + LATER_SECONDS if message_type == wire.DELAY else None
    while True:
        trial = Load(load.server, load.kind, load.topic, load.group, load.is_tls)
        try:
            (connection,) = await trial.producers(1)
            connection.start(trial.so_many(calls.sending(load.topic, message_type, due_s=due_s), iter([1])))
            await idle([connection])
            trial.failures.check()
            return
        except LoadFailed:
            if time.monotonic() > ends:
                raise
            await asyncio.sleep(0.2)
        finally:
            trial.close()


def memory(server: Server, when: str = "") -> Figures:
    """Return a server's memory in MB: resident, and its anonymous part."""
    return {
        f"{when}resident_mb": round(server.resident_bytes() / 1e6, 1),
        f"{when}anonymous_mb": round(server.anonymous_bytes() / 1e6, 1),
    }


async def idle(connections: list[Connection]) -> None:
    """Wait until all workers have ended; raise TimeoutError after `END_SECONDS`."""
    async with asyncio.timeout(END_SECONDS):
        for connection in connections:
            await connection.idle.wait()


@contextmanager
def spent(load: Load, figures: Figures) -> Iterator[None]:
    """Set in `figures` the rate, latencies and the processor time of server and load for the block."""
    load.took_s.clear()
    done, server_s, own_s, began = (
        load.done, load.server.processor_seconds(), time.process_time(), time.perf_counter(),
    )  # fmt: skip
    yield
    took_s = time.perf_counter() - began
    done = load.done - done
    load.failures.check()
    if not done:
        raise LoadFailed("Nothing was answered while it was measured.")
    figures["per_second"] = round(done / took_s, 1)
    figures["server_us"] = round((load.server.processor_seconds() - server_s) / done * 1e6, 1)
    figures["load_busy"] = round((time.process_time() - own_s) / took_s, 2)
    figures |= percentiles(load.took_s)


def percentiles(took_s: list[float]) -> Figures:
    """Return the median and the 99th percentile, in milliseconds."""
    ordered = sorted(took_s)
    if not ordered:
        return {}
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1_000, 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1_000, 3),
    }


async def window(load: Load, seconds: float, figures: Figures, run_up_s: float = RUN_UP_SECONDS) -> None:
    """Let the workers run up, measure them for `seconds`, and end them.

    The window ends early when the load is `finished`, and late if there is no answer yet.
    """
    await asyncio.sleep(min(run_up_s, seconds / 2))
    with spent(load, figures):
        done, until = load.done, time.monotonic() + FIRST_SECONDS
        with suppress(TimeoutError):
            await asyncio.wait_for(load.finished.wait(), seconds)
        while load.done == done and time.monotonic() < until:
            load.failures.check()
            await asyncio.sleep(0.01)
    load.goes_on = False


async def closed_loop(
    load: Load,
    seconds: float,
    worker: Callable[[], Worker],
    connections: int = CONNECTIONS,
    streams: int = STREAMS,
) -> Figures:
    """Keep one call in flight per stream; return the figures."""
    figures: Figures = {}
    opened = await load.producers(connections)
    for connection in opened:
        for _ in range(streams):
            connection.start(worker())
    await window(load, seconds, figures)
    await idle(opened)
    load.failures.check()
    return figures


async def send(load: Load, seconds: float) -> Figures:
    """Send one message per call, many calls at once."""
    return await closed_loop(load, seconds, lambda: load.unary(calls.sending(load.topic, wire.NORMAL)))


async def send_single(load: Load, seconds: float) -> Figures:
    """Send one message, one call at a time."""
    return await closed_loop(load, seconds, lambda: load.unary(calls.sending(load.topic, wire.NORMAL)), 1, 1)


async def send_many(load: Load, seconds: float) -> Figures:
    """Send sixteen messages per call."""
    request = calls.sending(load.topic, wire.NORMAL, PER_CALL)
    return await closed_loop(load, seconds, lambda: load.unary(request, PER_CALL))


async def delayed(load: Load, seconds: float) -> Figures:
    """Send one message per call, due in two hours."""
    request = calls.sending(load.topic, wire.DELAY, due_s=int(time.time()) + LATER_SECONDS)
    return await closed_loop(load, seconds, lambda: load.unary(request))


async def half(load: Load, seconds: float) -> Figures:
    """Send half messages and commit them."""
    return await closed_loop(load, seconds, load.halves)


async def receive(load: Load, seconds: float, *, is_each: bool = False) -> Figures:
    """Store messages, then receive 32 at a time and acknowledge them."""
    stored = FILL_WARMING if load.is_warming else int(FILL_PER_SECOND * seconds)
    await fill(load, stored)
    figures: Figures = {}
    load.done = 0
    for connection in await load.consumers(CONSUMERS):
        connection.start(load.receives(int(stored * 0.95), is_each=is_each))
    await window(load, seconds, figures, run_up_s=0.0)
    return figures


async def receive_each(load: Load, seconds: float) -> Figures:
    """Receive 32 at a time and acknowledge each in a separate call, as official clients do."""
    return await receive(load, seconds, is_each=True)


async def fill(load: Load, messages: int) -> None:
    """Store messages."""
    opened = await load.producers(CONNECTIONS)
    left = iter(range(0, messages, PER_CALL))
    for connection in opened:
        request = calls.sending(load.topic, wire.NORMAL, PER_CALL)
        for _ in range(2):
            connection.start(load.so_many(request, left))
    await idle(opened)
    load.failures.check()


async def crowd(load: Load, _: float) -> Figures:
    """Send messages due at one time; return the lateness of the last one stored and received, in seconds.

    They are sent as fast as the server accepts them; the lead time is estimated with a probe of messages due
    much later.
    """
    messages = CROWD_PROBE if load.is_warming else CROWD
    opened = await load.producers(CONNECTIONS)
    began = time.perf_counter()
    await send_due(load, opened, CROWD_PROBE, int(time.time()) + LATER_SECONDS)
    spare = 6.0 if load.is_warming else 1.5  # the duration of a warm-up run is irrelevant
    lead_s = CROWD_LEAD_SECONDS + spare * messages / CROWD_PROBE * (time.perf_counter() - began)
    due_s = int(time.time() + lead_s) + 1
    await send_due(load, opened, messages, due_s)
    left_s = due_s - time.time()
    if left_s < 0.5:
        raise LoadFailed(
            f"Sending {messages} took longer than {lead_s:.1f} s: the machine is too busy for this row."
        )
    stored_s, received_s, ids = list[float](), list[float](), set[str]()

    def note(message: Any) -> None:
        system = message.system_properties
        ids.add(system.message_id)
        received_s.append(time.time() - due_s)
        stored_s.append(system.store_timestamp.seconds + system.store_timestamp.nanos / 1e9 - due_s)

    load.done = 0
    consumers = await load.consumers(CONSUMERS // 2)
    figures: Figures = {}
    await asyncio.sleep(max(0.0, due_s - time.time() - RUN_UP_SECONDS))
    with spent(load, figures):
        for connection in consumers:
            connection.start(load.receives(messages, is_each=False, note=note))
        try:
            await asyncio.wait_for(load.finished.wait(), CROWD_PATIENCE_SECONDS)
        except TimeoutError:
            raise LoadFailed(
                f"Of {messages} messages {len(ids)} came in {CROWD_PATIENCE_SECONDS:g} s."
            ) from None
    load.goes_on = False
    return {
        "server_us": figures["server_us"],
        "first_received_s": round(min(received_s), 3),
        "last_stored_s": round(max(stored_s), 3),
        "last_received_s": round(max(received_s), 3),
        "received_twice": len(received_s) - len(ids),
    }


async def send_due(load: Load, opened: list[Connection], messages: int, due_s: int) -> None:
    """Send `messages` that are all due at one time."""
    left = iter(range(messages))
    request = calls.sending(load.topic, wire.DELAY, due_s=due_s)
    for connection in opened:
        for _ in range(STREAMS):
            connection.start(load.so_many(request, left))
    await idle(opened)
    load.failures.check()


async def latency(load: Load, seconds: float) -> Figures:
    """Measure the time from send to receipt, with 500 sends per second independent of the answers."""
    took_s: list[float] = []

    def note(message: Any) -> None:
        if message.body[0] != ord("!"):
            took_s.append(time.perf_counter() - calls.stamp_s(message.body))

    messages = int(seconds * PACE_PER_SECOND)
    for connection in await load.consumers(CONSUMERS // 2):
        connection.start(load.receives(1 << 60, is_each=True, note=note))
    opened = await load.producers(4)
    request = calls.sending(load.topic, wire.NORMAL)
    await asyncio.sleep(RUN_UP_SECONDS)
    figures: Figures = {}
    run_up = int(RUN_UP_SECONDS * PACE_PER_SECOND)
    begins = time.perf_counter()
    await paced(load, opened, request, begins, range(run_up))
    took_s.clear()
    load.done = 0
    with spent(load, figures):
        await paced(load, opened, request, begins, range(run_up, run_up + messages))
        await idle(opened)
        async with asyncio.timeout(END_SECONDS):
            while len(took_s) < messages:
                await asyncio.sleep(0.01)
                load.failures.check()
    load.goes_on = False
    return {"server_us": figures["server_us"], "load_busy": figures["load_busy"]} | percentiles(took_s)


async def paced(
    load: Load, opened: list[Connection], request: Callable[[], Asked], begins: float, numbers: range
) -> None:
    """Send each message at its scheduled time."""
    for number in numbers:
        wait_s = begins + number / PACE_PER_SECOND - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        opened[number % len(opened)].start(
            load.so_many(lambda: calls.stamped(request()), iter([1]), counted=0)
        )


def with_merged(rows: dict[str, Row]) -> dict[str, Row]:
    """Return all rows, and after each receiving row a copy with a RocketMQ that merges pops."""
    found = {}
    for name, row in rows.items():
        found[name] = row
        if name in RECEIVING:
            title = f"{row.title}, RocketMQ with `enablePopBufferMerge`"
            found[f"{name}-merged"] = replace(row, title=title, merges_pops=True)
    return found


RECEIVING: Final = ("receive", "receive-each", "crowd", "latency")
ROWS: Final = with_merged(
    {
        "send": Row("send 1 a call, 16 connections x 8", send),
        "send-tls": Row("send 1 a call over TLS", send, is_tls=True),
        "single": Row("send 1 x 1", send_single),
        "many": Row("send 16 a call", send_many),
        "delayed": Row("delayed, 1 a call", delayed, "DELAY"),
        "receive": Row("receive 32, acknowledge in one call", receive),
        "receive-each": Row("receive 32, acknowledge each", receive_each),
        "crowd": Row("20,000 due at one instant", crowd, "DELAY"),
        "latency": Row("send to receipt at 500/s", latency),
        "half": Row("half and commit", half, "TRANSACTION", is_last=True),
    }
)
