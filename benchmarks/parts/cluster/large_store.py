"""A large store in a cluster: create, copy, takeover and step-down.

Records have 1 KB by default: 10 million of them are a log of 10 GB.

build    the messages, in bulk (`parts.store_builder`), and the timers through a core
begin    tidewheel cluster create --from that store; its node leads
copy     a second node with an empty disk copies the store and follows
move     the lead moves to the second node, and the first, which has left a checkpoint, follows again
tail     sends, until the log has a long tail after the checkpoint to which a node reverts
pause    the second node is stopped until the first leads; resumed, it steps down, and has to read the tail
         again until it follows, warm
kill     the first node is killed; the second answers a send
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from parts import store_builder
from parts.front.server import Served
from parts.serving import serving
from parts.shell import BATCH, DAY_MS, Shell, message, real_ms

WAIT_SECONDS: Final = 3_600.0
POLL_SECONDS: Final = 0.02
MIB: Final = 1 << 20
TAIL_BYTES: Final = 40 * MIB
SENDING_SECONDS: Final = 5
SENDINGS_MAX: Final = 30
BENCHMARK: Final = str(Path(__file__).parents[2] / "cluster.py")
JSON: Final = {"Content-Type": "application/json"}


class Figures(dict[str, Any]):
    """Figures by name; each is also printed to stderr when it is set, for runs that are interrupted."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        print(json.dumps({name: value}), file=sys.stderr, flush=True)


def measure(url: str, folder: Path, records: int, timers: int, body_bytes: int) -> dict[str, Any]:
    """Return the duration of each step, in seconds, over the empty shared log at `url`."""
    store, figures = folder / "a", Figures()
    began = time.monotonic()
    log_bytes = store_builder.build(store, records, body_bytes)
    add_timers(store, timers)
    figures["log_mib"] = log_mib = round(log_bytes / MIB)
    figures["build_seconds"] = since(began)
    command = [sys.executable, "-m", "services.cli.main", "cluster", "create", url, "--from", str(store)]
    figures["create_seconds"] = timed(lambda: subprocess.run(command, check=True, capture_output=True))
    with ExitStack() as stack:
        began = time.monotonic()
        first = stack.enter_context(serving(store, "--cluster", url, "--node", "a"))
        until(lambda: view(first)["role"] == "leading")
        figures["begin_seconds"] = since(began)
        figures["begin_rss_mib"] = memory_mib(first)
        until(lambda: view(first)["copies"].get("a", {}).get("end_offset"))
        figures["read_back_seconds"] = since(began)
        figures["read_back_processor_seconds"] = processor_seconds(first)
        began = time.monotonic()
        second = stack.enter_context(serving(folder / "b", "--cluster", url, "--node", "b"))
        until(lambda: view(second)["role"] == "following" and is_up_to(second, first))
        figures["copy_seconds"] = copy_seconds = since(began)
        figures["copy_mib_per_second"] = round(log_mib / copy_seconds)
        figures["copy_processor_seconds"] = processor_seconds(second)
        figures["copy_rss_mib"] = memory_mib(second)
        began = time.monotonic()
        post(first, "/api/cluster/move", {"node": "b"})
        send(second)
        figures["move_seconds"] = since(began)
        until(lambda: view(first)["role"] == "following" and is_up_to(first, second))
        figures["warm_again_seconds"] = since(began)
        figures["tail_mib"] = round(grow_tail(second, folder / "b") / MIB)
        os.kill(second["process"], signal.SIGSTOP)
        until(lambda: view(first)["role"] == "leading")  # a request forwarded to a stopped node blocks
        send(first)
        used, began = processor_seconds(second), time.monotonic()
        os.kill(second["process"], signal.SIGCONT)
        until(lambda: view(second)["role"] == "following" and is_up_to(second, first))
        figures["warm_with_tail_seconds"] = since(began)
        figures["warm_with_tail_processor_seconds"] = round(processor_seconds(second) - used, 1)
        began = time.monotonic()
        os.kill(first["process"], signal.SIGKILL)
        send(second)
        figures["takeover_seconds"] = since(began)
        figures["takeover_rss_mib"] = memory_mib(second)
    return figures


def grow_tail(leader: dict[str, Any], store: Path) -> int:
    """Send until at least `TAIL_BYTES` of log follow the newest checkpoint in `store`; return their number.

    The number of sending runs is limited to `SENDINGS_MAX`.
    """
    command = [sys.executable, BENCHMARK, "part", "sends", leader["listen"], "128", str(SENDING_SECONDS)]
    for _ in range(SENDINGS_MAX):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        newest = max(int(path.name) for path in (store / "snapshots").iterdir() if path.name.isdigit())
        tail = int(view(leader)["end_offset"]) - newest
        if tail >= TAIL_BYTES:
            break
    return tail


def processor_seconds(node: dict[str, Any]) -> float:
    """Return the processor time of a node in seconds, which other work on the machine hardly affects."""
    return round(Served(node["process"], node["listen"]).processor_seconds(), 1)


def memory_mib(node: dict[str, Any]) -> int:
    """Return the resident memory of a node in MiB."""
    return Served(node["process"], node["listen"]).resident_bytes() // MIB


def add_timers(store: Path, count: int) -> None:
    """Set `count` timers, due from tomorrow on, one per millisecond."""
    shell, tomorrow_ms = Shell(store), real_ms() + DAY_MS
    for first in range(0, count, BATCH):
        for number in range(first, min(count, first + BATCH)):
            shell.core.sending.send(message(number, tomorrow_ms + number), shell.clock())
        shell.turn()
    shell.settle()
    shell.close()


def is_up_to(node: dict[str, Any], leader: dict[str, Any]) -> bool:
    """Return whether a node's end offset has reached the leader's current one."""
    end = view(leader)["end_offset"]
    return bool(view(node)["end_offset"] >= end)


def send(node: dict[str, Any]) -> None:
    """Send a message through a node; retry until it is accepted."""
    while True:
        try:
            post(node, "/api/messages", {"topic": store_builder.TOPIC, "body": "x"})
            return
        except OSError:
            time.sleep(POLL_SECONDS)


def view(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node's view of its cluster."""
    with urlopen(f"http://{node['http']}/api/cluster", timeout=60) as answer:
        return dict(json.load(answer))


def post(node: dict[str, Any], path: str, body: dict[str, Any]) -> None:
    """Post JSON to a node; raise `HTTPError`, with the node's answer as its note."""
    try:
        urlopen(Request(f"http://{node['http']}{path}", json.dumps(body).encode(), JSON), timeout=60).close()
    except HTTPError as error:
        error.add_note(error.read().decode())
        raise


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds; raise AssertionError after an hour."""
    ends = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < ends, "it did not come to that in an hour"
        time.sleep(POLL_SECONDS)


def timed(do: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    began = time.monotonic()
    do()
    return since(began)


def since(began: float) -> float:
    """Return the seconds since a time of the monotonic clock."""
    return round(time.monotonic() - began, 2)
