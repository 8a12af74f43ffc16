"""Senders with a fixed number of calls in flight, in a separate process that does little but write frames.

Every message has its own id, since a broker stores messages with a known id only once. Latency is the time
from the write of a request to the end of its answer; answers of the first WARM_SECONDS are not counted.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[3]))

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from tests.attacks.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    SERVICE,
    SETTINGS,
    WINDOW_UPDATE,
    call_of,
    frame,
)

TOPIC: Final = "orders"
BODY_BYTES: Final = 256
WARM_SECONDS: Final = 1.0
CONNECTIONS: Final = {1: 1, 16: 4, 128: 16}
"""Number of connections, by calls in flight."""
_HEAD: Final = struct.Struct(">HBBBI")
_NUMBER: Final = "{:034d}"


def sends(endpoint: str, in_flight: str, seconds: str) -> dict[str, Any]:
    """Keep `in_flight` sends in flight for `seconds`; return the number of answers, rate and latencies."""
    return asyncio.run(_sends(endpoint, int(in_flight), float(seconds)))


async def _sends(endpoint: str, in_flight: int, seconds: float) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    host, _, port = endpoint.rpartition(":")
    count = CONNECTIONS[in_flight]
    senders = [Sender(in_flight // count, number) for number in range(count)]
    for sender in senders:
        await loop.create_connection(lambda sender=sender: sender, host, int(port))  # type: ignore[misc]
        sender.begin()
    await asyncio.sleep(WARM_SECONDS)
    warm = 0
    for sender in senders:
        warm += len(sender.took)
        sender.took.clear()
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    took = sorted(one for sender in senders for one in sender.took)
    lasted = time.perf_counter() - began
    for sender in senders:
        sender.end()
    return {
        "answered": warm + len(took),
        "per_second": round(len(took) / lasted, 1),
        "p50_ms": round(took[len(took) // 2] * 1000, 2),
        "p99_ms": round(took[len(took) * 99 // 100] * 1000, 2),
        "max_ms": round(took[-1] * 1000, 2),
    }


class Sender(asyncio.Protocol):
    """A connection with a fixed number of sends in flight."""

    def __init__(self, in_flight: int, number: int) -> None:
        self._in_flight = in_flight
        self.took: list[float] = []
        """Duration of each send, in seconds."""
        self._count = (os.getpid() << 40) + (number << 32)
        self._request, self._id_at = request_of()
        self._fields = call_of(SERVICE + "SendMessage")
        self._began: dict[int, float] = {}
        self._told: dict[int, bytes] = {}
        self._rest, self._next_id, self._is_over = b"", 1, False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Send the preface, SETTINGS and WINDOW_UPDATE."""
        self._transport = transport
        windows = struct.pack(">HI", INITIAL_WINDOW_SIZE, 1 << 30)
        more = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        transport.write(PREFACE + frame(SETTINGS, 0, 0, windows) + more)

    def begin(self) -> None:
        """Make the first calls; each answer triggers the next."""
        self._transport.write(b"".join(self._call() for _ in range(self._in_flight)))

    def end(self) -> None:
        """Close the connection."""
        self._is_over = True
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if the server closed the connection."""
        assert self._is_over, f"the server hung up: {error}"

    def data_received(self, data: bytes) -> None:
        """Process the server's frames, and make the next calls."""
        data, at, out = self._rest + data, 0, []
        while len(data) - at >= _HEAD.size:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            ends = at + _HEAD.size + (high << 8 | low)
            if ends > len(data):
                break
            payload = data[at + _HEAD.size : ends]
            at = ends
            if kind == DATA:
                self._told[stream_id] = self._told.get(stream_id, b"") + payload
            elif kind in (SETTINGS, PING) and not flags & ACK:
                out.append(frame(kind, ACK, 0, payload if kind == PING else b""))
            if flags & END_STREAM and kind in (DATA, HEADERS):
                self._answered(stream_id)
                out.append(self._call())
        self._rest = data[at:]
        self._transport.write(b"".join(out))

    def _call(self) -> bytes:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self._count += 1
        at, name = self._id_at, _NUMBER.format(self._count).encode()
        message = self._request[:at] + name + self._request[at + len(name) :]
        self._began[stream_id] = time.perf_counter()
        return frame(HEADERS, END_HEADERS, stream_id, self._fields) + frame(
            DATA, END_STREAM, stream_id, b"\0" + len(message).to_bytes(4, "big") + message
        )

    def _answered(self, stream_id: int) -> None:
        self.took.append(time.perf_counter() - self._began.pop(stream_id))
        answer = service.SendMessageResponse.FromString(self._told.pop(stream_id)[5:])
        assert answer.status.code == wire.Code.OK, answer.status


def request_of() -> tuple[bytes, int]:
    """Return a SendMessage of one message, and the position of the message's id in it."""
    name = _NUMBER.format(0)
    system = wire.SystemProperties(message_id=name, message_type=wire.MessageType.NORMAL)
    system.born_timestamp.GetCurrentTime()
    message = wire.Message(topic=wire.Resource(name=TOPIC), system_properties=system, body=bytes(BODY_BYTES))
    request = service.SendMessageRequest(messages=[message]).SerializeToString()
    return request, request.index(name.encode())
