"""The broker under test, in a process of its own with the event loop that is asked for.

python front_server.py asyncio|uvloop STORE READY_FILE sync|async [FRONT]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 60
CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class Served:
    """A broker process: its protocol port, its HTTP port, and the front's one or two behind it."""

    process: int
    folder: Path
    listen: str
    http: str
    behind_plaintext: str | None
    behind_tls: str | None

    @classmethod
    def when_ready(cls, process: int, ready: Path) -> Served:
        """Wait until it serves."""
        ends = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert time.monotonic() < ends, "the broker did not start"
            time.sleep(0.05)
        facts, ports = json.loads(ready.read_text()), json.loads(behind_file(ready).read_text())
        plaintext, tls = (port and f"127.0.0.1:{port}" for port in ports)
        return cls(process, ready.parent, facts["listen"], facts["http"], plaintext, tls)


def behind_file(ready: Path) -> Path:
    """Where the broker says which ports are behind its front."""
    return ready.with_name("behind")


def processor_seconds(process: int) -> float:
    """What a process and its children have used so far, to the nanosecond (Linux)."""
    return sum(time.clock_gettime(~one << 3 | CPUCLOCK_SCHED) for one in family(process))


def family(process: int) -> Iterator[int]:
    """Yield a process and all that come from it."""
    yield process
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def resident_bytes(process: int) -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(loop: str, store: str, ready: str, flush: str, front: str = "grpcio") -> None:
    """Serve until SIGTERM."""
    from front_kinds import KINDS
    from front_pyvoy import launch

    prepare(loop)
    if KINDS[front].is_in_envoy:
        asyncio.run(launch(loop, store, ready, flush, is_tls=KINDS[front].serves_tls))
    else:
        asyncio.run(run_broker(KINDS[front].make, store, ready, flush))


def prepare(loop: str) -> None:
    """Do what `services.run.serve` does for its process, and choose the event loop."""
    from services import logs, memory, run

    memory.keep_little()
    logs.configure()
    run.allow_many_files()
    run.share_interpreter(is_crowded=False)
    if loop == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def run_broker(
    make: Callable[..., Any],
    store: str,
    ready: str,
    flush: str,
    told_to_stop: Callable[[], Any] | None = None,
) -> None:
    """Run a broker, all of it as ever but for what serves gRPC behind its port."""
    from services import run
    from services.config import Address, ServeSettings, load
    from services.front.front import LOOPBACK, Behind
    from services.rpc.server import GrpcServer

    behind, run_names = run.behind, vars(run)

    def told_behind(server: Any, settings: ServeSettings) -> Any:
        serves_tls = getattr(server, "serves_tls", True)
        found = behind(server, settings) if serves_tls else Behind(server.bind(LOOPBACK, 0))
        plaintext = found.plaintext if getattr(server, "serves_plaintext", True) else None
        behind_file(Path(ready)).write_text(json.dumps([plaintext, found.tls]))
        return found

    if make is not GrpcServer:
        run_names["credentials"] = lambda files: files
    run_names["GrpcServer"], run_names["behind"] = make, told_behind
    if told_to_stop is not None:
        run_names["told_to_stop"] = told_to_stop
    nowhere = Address("127.0.0.1", 0)
    settings = load(
        ServeSettings, store=Path(store), listen=nowhere, http=nowhere, ready_file=Path(ready), flush=flush
    )
    await run.run(settings, lambda _: None)


if __name__ == "__main__":
    serve(*sys.argv[1:])
