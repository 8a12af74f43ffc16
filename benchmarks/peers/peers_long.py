"""The slow rows: starts with a million messages, also after a kill, and a kill during a crowd."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from itertools import count
from typing import Any, Final

from peers_http2 import LoadFailed
from peers_rows import CONNECTIONS, CONSUMERS, Figures, Load, fill, first_call, memory, send_due
from peers_servers import Server

from services.rpc.generated import definition_pb2 as wire

MILLION, MILLION_STEP = 1_000_000, 100_000
CROWD, KILLED_AT = 50_000, 0.02
LEAD_SECONDS, QUIET_SECONDS, PATIENCE_SECONDS = 3.0, 10.0, 240.0
_runs: Final = count(1)


def load_of(server: Server, message_type: str) -> Load:
    """Return a load on a new topic and group."""
    name = f"peers-long-{os.getpid()}-{next(_runs)}"
    server.make_topic(name, message_type)
    server.make_group(f"g-{name}")
    return Load(server, "plain", name, f"g-{name}")


async def start_with_a_million(server: Server) -> Figures:
    """Store a million messages, then start twice: after a stop, and after a kill; return the figures."""
    load = load_of(server, "NORMAL")
    await first_call(load, wire.NORMAL)
    for _ in range(MILLION // MILLION_STEP):
        await fill(load, MILLION_STEP)
        load.close()
        load.connections.clear()
    server.stop()
    await server.start()
    figures = {"seconds": server.start_seconds} | memory(server)
    server.kill()
    await server.start()
    return figures | {"killed_seconds": server.start_seconds}


async def kill_in_a_crowd(server: Server) -> Figures:
    """Kill a server during the delivery of messages due at one time; return missing and doubled counts.

    It is killed after the first of them have been received, while others are still being made visible. A
    message is stored twice if its first deliveries come from more than one queue offset; a redelivery after
    its lease is correct, and has a higher attempt number.
    """
    load = load_of(server, "DELAY")
    await first_call(load, wire.DELAY)
    opened = await load.producers(CONNECTIONS)
    began = time.perf_counter()
    probe = CROWD // 50
    await send_due(load, opened, probe, int(time.time()) + 7_200)
    due_s = int(time.time() + LEAD_SECONDS + 1.5 * CROWD / probe * (time.perf_counter() - began)) + 1
    await send_due(load, opened, CROWD, due_s)
    if time.time() > due_s:
        raise LoadFailed(f"Sending {CROWD} took longer than planned: the machine is too busy for this row.")
    places: dict[str, set[Any]] = defaultdict(set)
    heard_s = [time.monotonic()]

    def note(message: Any) -> None:
        system = message.system_properties
        seen = places[system.message_id]
        heard_s[0] = time.monotonic()
        if system.delivery_attempt <= 1:
            seen.add((system.queue_id, system.queue_offset))

    load.done = 0
    await consume(load, note, int(CROWD * KILLED_AT))
    load.close()
    server.kill()
    killed_s = time.monotonic()
    await server.start()
    again = Load(server, load.kind, load.topic, load.group)
    heard_s[0] = time.monotonic()
    waiting = asyncio.create_task(consume(again, note, 1 << 60))
    try:
        while time.monotonic() - killed_s < PATIENCE_SECONDS:
            await asyncio.sleep(0.2)
            if len(places) >= CROWD and time.monotonic() - heard_s[0] > QUIET_SECONDS:
                break
    finally:
        waiting.cancel()
        again.close()
    return {
        "missing": CROWD - len(places),
        "stored_twice": sum(len(seen) > 1 for seen in places.values()),
        "all_received_s": round(heard_s[0] - killed_s, 1),
    }


async def consume(load: Load, note: Any, of_all: int) -> None:
    """Receive until `of_all` messages have been received."""
    for connection in await load.consumers(CONSUMERS // 2):
        connection.start(load.receives(of_all, is_each=False, note=note))
    await load.finished.wait()


LONG: Final = {"start-million": start_with_a_million, "kill": kill_in_a_crowd}
