"""Calls by h2load: one gRPC request as a file, sent repeatedly."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from services.front.grpc_wire import frame_message
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
HEADERS: Final = ("content-type: application/grpc", "te: trailers", "x-mq-client-id: h2load")
BODY_BYTES: Final = 256
BATCH: Final = 32
FILL: Final = 64
CONNECTIONS, STREAMS = 16, 8
LEASE_SECONDS: Final = 3_600
UNITS_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1_000.0}
_RATE: Final = re.compile(r"finished in .*, ([0-9.]+) req/s")
_DONE: Final = re.compile(r"(\d+) succeeded, (\d+) failed, (\d+) errored")
_DATA: Final = re.compile(r"\((\d+)\) data")
_TIMES: Final = re.compile(r"time for request: +([0-9.]+)(us|ms|s) +([0-9.]+)(us|ms|s) +([0-9.]+)(us|ms|s)")


class Load(NamedTuple):
    """Calls of one RPC by `connections` with `streams` each; `before` is a load that runs first."""

    rpc: str
    body: bytes
    calls: int
    connections: int
    streams: int
    answer_bytes_min: int = 0
    before: Load | None = None


def loads(topic: str, calls: int) -> dict[str, Load]:
    """Return the loads on a topic, by name."""
    receives = calls // 16
    stored = Load("SendMessage", send_body(topic, FILL), receives * BATCH // FILL, 4, 1)
    return {
        "heartbeat": Load("Heartbeat", heartbeat_body(), calls, CONNECTIONS, STREAMS),
        "send": Load("SendMessage", send_body(topic), calls, CONNECTIONS, STREAMS),
        "send, one outstanding": Load("SendMessage", send_body(topic), calls // 20, 1, 1),
        "receive 32": Load(
            "ReceiveMessage", receive_body(topic), receives, CONNECTIONS, 1, BATCH * BODY_BYTES, stored
        ),
    }


def h2load(address: str, load: Load, *, is_tls: bool) -> dict[str, Any]:
    """Make the calls; return calls a second, and the latency of a call in milliseconds."""
    with tempfile.NamedTemporaryFile(prefix="h2load-") as body:
        Path(body.name).write_bytes(load.body)
        how = ["-n", str(load.calls), "-c", str(load.connections), "-m", str(load.streams), "-d", body.name]
        headers = [part for header in HEADERS for part in ("-H", header)]
        url = f"{'https' if is_tls else 'http'}://{address}/{SERVICE}/{load.rpc}"
        ran = subprocess.run(["h2load", *how, *headers, url], capture_output=True, text=True, check=True)
    return read(ran.stdout)


def read(said: str) -> dict[str, Any]:
    """Return the figures in the output of h2load."""
    rate, done, times = _RATE.search(said), _DONE.search(said), _TIMES.search(said)
    assert rate, said
    assert done, said
    data = _DATA.search(said)
    assert data, said
    assert times, said
    assert done[2] == done[3] == "0", said
    _, most, mean = (float(times[place]) * UNITS_MS[times[place + 1]] for place in (1, 3, 5))
    return {
        "calls_per_second": round(float(rate[1])),
        "mean_ms": round(mean, 3),
        "max_ms": round(most, 1),
        "data_bytes": int(data[1]),
    }


def send_body(topic: str, count: int = 1) -> bytes:
    """Return a SendMessage of `count` messages."""
    message = wire.Message(
        topic=wire.Resource(name=topic),
        system_properties=wire.SystemProperties(
            message_id="01" + "0" * 32, message_type=wire.NORMAL, body_encoding=wire.IDENTITY
        ),
        body=bytes(BODY_BYTES),
    )
    return frame_message(service.SendMessageRequest(messages=[message] * count).SerializeToString())


def heartbeat_body() -> bytes:
    """Return a Heartbeat, which uses no store: its cost is that of the front."""
    return frame_message(service.HeartbeatRequest(client_type=wire.PRODUCER).SerializeToString())


def receive_body(topic: str) -> bytes:
    """Return a ReceiveMessage of 32 with the shortest wait; its lease of an hour outlasts the run."""
    request = service.ReceiveMessageRequest(
        group=wire.Resource(name=f"g-{topic}"),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic), id=-1),
        filter_expression=wire.FilterExpression(expression="*"),
        batch_size=BATCH,
    )
    request.invisible_duration.seconds = LEASE_SECONDS
    request.long_polling_timeout.seconds = 5
    return frame_message(request.SerializeToString())
