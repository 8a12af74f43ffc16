"""The same calls to the same broker behind different fronts, in turn, so that other work meets all of them.

All brokers of one event loop are there at once, each on a store of its own. Before anything is measured a
gRPC client makes sure that each answers as it should; whether its Telemetry stream works in both directions
is noted, for not every front can do it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import grpc
from front_kinds import versions
from front_load import BODY_BYTES, SERVICE, Load, h2load, loads, receive_body, send_body
from front_server import Served, processor_seconds

from services.front.certificates import CERTIFICATE
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

SERVER: Final = Path(__file__).with_name("front_server.py")
FLOOR: Final = SERVER.with_name("front_floor.py")
WHO: Final = (("x-mq-client-id", "check"),)
CHECK_SECONDS = 10
BASE: Final = ("asyncio", "grpcio", "straight")
COLUMNS: Final = {
    "heartbeat/s": ("heartbeat", "calls_per_second"),
    "us a heartbeat": ("heartbeat", "server_us_per_call"),
    "send/s": ("send", "calls_per_second"),
    "us a send": ("send", "server_us_per_call"),
    "one: ms": ("send, one outstanding", "mean_ms"),
    "receive 32/s": ("receive 32", "calls_per_second"),
    "us a receive": ("receive 32", "server_us_per_call"),
}
"""Of the table: the load and its figure; `us` are microseconds of the server's processor time."""


class Way(NamedTuple):
    """How calls reach a broker."""

    front: str
    name: str
    served: Served
    address: str
    is_tls: bool


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Measure every front that is installed; what is not is named."""
    found = {name: versions(name) for name in given.fronts}
    there = [name for name, packages in found.items() if packages]
    left_out = [name for name, packages in found.items() if not packages]
    figures = {loop: of_loop(loop, there, given) for loop in given.loops}
    return {"versions": {name: found[name] for name in there}, "left_out": left_out, "figures": figures}


def of_loop(loop: str, fronts: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """All ways with one event loop, each in turn, `rounds` times; the best of each figure counts."""
    measured_ways: dict[str, Any] = {}
    with ExitStack() as stack:
        brokers = [stack.enter_context(started(front, loop, given.flush)) for front in fronts]
        ways = [
            way for front, broker in zip(fronts, brokers, strict=True) for way in ways_of(front, broker())
        ]
        for way in ways:
            said = measured_ways.setdefault(way.front, {}).setdefault(way.name, {})
            said["telemetry"] = check(way)
        for turn in range(given.rounds):
            for place, way in enumerate(ways):
                print(f"{loop}, round {turn + 1}: {way.front}, {way.name}", file=sys.stderr)
                for name, load in loads(f"bench-{place}-{turn}", given.calls).items():
                    keep_best(measured_ways[way.front][way.name], name, measured(way, load))
            for name, ran in floor(loop, given).items():
                keep_best(measured_ways.setdefault("none", {}).setdefault("handlers alone", {}), name, ran)
    return measured_ways


def ways_of(front: str, served: Served) -> list[Way]:
    """What is measured of a front; the port in front of them is measured with grpcio only."""
    front = front.removesuffix(", TLS")
    ways = []
    if served.behind_plaintext:
        ways.append(Way(front, "straight", served, served.behind_plaintext, False))
    if served.behind_tls:
        ways.append(Way(front, "straight, TLS", served, served.behind_tls, True))
    if front == "grpcio":
        ways.append(Way(front, "through the port", served, served.listen, False))
        ways.append(Way(front, "through the port, TLS", served, served.listen, True))
    return ways


def measured(way: Way, load: Load) -> dict[str, Any]:
    """One run of h2load, and what it cost the server."""
    if load.before:
        h2load(way.address, load.before, is_tls=way.is_tls)
    before_s = processor_seconds(way.served.process)
    ran = h2load(way.address, load, is_tls=way.is_tls)
    spent_s = processor_seconds(way.served.process) - before_s
    assert ran.pop("data_bytes") >= load.calls * load.answer_bytes_min, "not all answers held 32 messages"
    return ran | {"server_us_per_call": round(spent_s / load.calls * 1e6)}


def floor(loop: str, given: argparse.Namespace) -> dict[str, Any]:
    """The handlers without a front (`front_floor`)."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-front-") as folder:
        command = [sys.executable, str(FLOOR), loop, folder, given.flush, str(given.calls)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def keep_best(found: dict[str, Any], name: str, ran: dict[str, Any]) -> None:
    """Keep the better of each figure of two runs."""
    kept = found.setdefault(name, ran)
    for figure, value in ran.items():
        better = max if figure.endswith("_per_second") else min
        kept[figure] = better(kept[figure], value)


def check(way: Way) -> str:
    """Have a gRPC client send, receive and open a stream; returns how that went, raises for the rest."""
    with channel_to(way) as channel:
        send = method(
            channel.unary_unary, "SendMessage", service.SendMessageRequest, service.SendMessageResponse
        )
        receive = method(
            channel.unary_stream,
            "ReceiveMessage",
            service.ReceiveMessageRequest,
            service.ReceiveMessageResponse,
        )
        topic = f"check-{way.name.replace(', ', '-').replace(' ', '-')}"
        sent = send(
            service.SendMessageRequest.FromString(send_body(topic)[5:]), metadata=WHO, timeout=CHECK_SECONDS
        )
        assert sent.status.code == wire.Code.OK, sent.status
        asked = service.ReceiveMessageRequest.FromString(receive_body(topic)[5:])
        got = list(receive(asked, metadata=WHO, timeout=CHECK_SECONDS))
        assert got[0].status.code == wire.Code.OK, got
        assert len(got[1].message.body) == BODY_BYTES, got
        return telemetry(channel)


def telemetry(channel: grpc.Channel) -> str:
    """Whether a stream is answered again and again while its client still writes: OK, or what went wrong."""
    command, said = service.TelemetryCommand, SimpleQueue[Any]()
    stream = method(channel.stream_stream, "Telemetry", command, command)
    answers = stream(iter(said.get, None), metadata=WHO, timeout=CHECK_SECONDS)
    try:
        for _ in range(2):
            said.put(command(settings=wire.Settings(client_type=wire.SIMPLE_CONSUMER)))
            code = next(answers).status.code
    except grpc.RpcError as error:
        return str(error.code())
    finally:
        said.put(None)
    return wire.Code.Name(code)


def method(shape: Any, name: str, request: Any, reply: Any) -> Any:
    """A call that a gRPC client makes."""
    return shape(f"/{SERVICE}/{name}", request.SerializeToString, reply.FromString)


@contextmanager
def channel_to(way: Way) -> Iterator[grpc.Channel]:
    """Connect as a client does."""
    if not way.is_tls:
        with grpc.insecure_channel(way.address) as channel:
            yield channel
        return
    certificate = min(way.served.folder.rglob(CERTIFICATE), key=lambda path: len(path.parts)).read_bytes()
    with grpc.secure_channel(way.address, grpc.ssl_channel_credentials(certificate)) as channel:
        yield channel


@contextmanager
def started(front: str, loop: str, flush: str) -> Iterator[Callable[[], Served]]:
    """Run a broker behind a front, on a store that goes when it does; call what you get to wait for it."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-front-") as folder:
        ready = Path(folder) / "ready"
        command = [sys.executable, str(SERVER), loop, str(Path(folder) / "store"), str(ready), flush, front]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield partial(Served.when_ready, process.pid, ready)
        finally:
            process.terminate()
            process.wait()


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown, with what each is of grpcio's straight on asyncio."""
    loop, front, way = BASE
    base = found["figures"].get(loop, {}).get(front, {}).get(way)
    rows = [["front", "loop", "way", *COLUMNS, "Telemetry"]]
    rows += [
        [
            front,
            loop,
            way,
            *(cell(figures, base, *column) for column in COLUMNS.values()),
            figures.get("telemetry", ""),
        ]
        for loop, fronts in found["figures"].items()
        for front, ways in fronts.items()
        for way, figures in ways.items()
    ]
    rows.insert(1, ["---"] * len(rows[0]))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, *(f"left out, for it is not installed: {name}" for name in found["left_out"])])


def cell(figures: dict[str, Any], base: dict[str, Any] | None, load: str, figure: str) -> str:
    """A figure, and how many times the base's it is."""
    value = figures[load][figure]
    return f"{value:,}" + (f" ({value / base[load][figure]:.2f})" if base else "")
