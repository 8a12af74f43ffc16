"""What the handlers alone cost: the same calls to the same broker, made in its own loop, without a front.

    python front_floor.py asyncio|uvloop FOLDER sync|async CALLS

What a front costs is what its column has above this. Requests are parsed and replies are serialized, as every
front must.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from front_grpc import PREFIX_BYTES, Route, routes_of
from front_load import Load, loads
from front_server import prepare, run_broker

from services.rpc.caller import Caller
from services.rpc.turns import Turns

SOMEBODY = Caller("h2load")


class NoFront:
    """Takes the place of `services.rpc.server.GrpcServer`: keeps the table."""

    serves_tls = False
    routes: dict[str, Route]

    def __init__(self, *_: Any) -> None:
        """Listen nowhere."""

    def bind(self, *_: Any) -> int:
        """Nobody will connect."""
        return 1

    async def start(self, rpcs: Any, turns: Turns, observe: Any) -> None:
        """Keep the table."""
        NoFront.routes = routes_of(rpcs, turns, observe)

    async def stop(self, _: float) -> None:
        """End."""


async def measure(folder: Path, flush: str, calls: int) -> dict[str, Any]:
    """Run a broker and call it."""
    stop = asyncio.Event()
    broker = asyncio.create_task(
        run_broker(
            NoFront, str(folder / "store"), str(folder / "ready"), flush, contextmanager(lambda: iter([stop]))
        )
    )
    while not (folder / "ready").exists():
        await asyncio.sleep(0.05)
    try:
        return {name: await made(load) for name, load in loads("bench", calls).items()}
    finally:
        stop.set()
        await broker


async def made(load: Load) -> dict[str, Any]:
    """Make the calls, as many at a time as the load has streams."""
    if load.before:
        await made(load.before)
    route, message = (
        next(one for one in NoFront.routes.values() if one.name == load.rpc),
        load.body[PREFIX_BYTES:],
    )
    call = one_answer if route.is_unary else all_answers
    left = iter(range(load.calls))
    began_s, processor_s = time.perf_counter(), time.process_time()
    callers = (calling(call, route, message, left) for _ in range(load.connections * load.streams))
    await asyncio.gather(*callers)
    took_s, spent_s = time.perf_counter() - began_s, time.process_time() - processor_s
    at_once = load.connections * load.streams
    return {
        "calls_per_second": round(load.calls / took_s),
        "mean_ms": round(took_s / load.calls * at_once * 1000, 3),
        "server_us_per_call": round(spent_s / load.calls * 1e6),
    }


async def calling(
    call: Callable[[Route, bytes], Coroutine[Any, Any, None]], route: Route, message: bytes, left: Any
) -> None:
    """Call until there is nothing left to do; each call is a task, as it is behind a front."""
    for _ in left:
        await asyncio.create_task(call(route, message))


async def one_answer(route: Route, message: bytes) -> None:
    """Call a unary RPC."""
    await route.answer(message, SOMEBODY)


async def all_answers(route: Route, message: bytes) -> None:
    """Call one that streams."""
    async for _ in route.answers(message, SOMEBODY):
        pass


if __name__ == "__main__":
    prepare(sys.argv[1])
    print(json.dumps(asyncio.run(measure(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))))
