"""Many idle clients: each a separate connection with an open Telemetry stream and a long poll."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import grpc

from parts.front.load import SERVICE
from parts.front.server import Served
from parts.grpc_client import receive_request
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

AT_ONCE = 100
POLL_SECONDS = 300


def measure_connections(served: Served, count: int, seconds: float) -> dict[str, Any]:
    """Connect, stay idle, disconnect; return the server's memory per connection and its processor time."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(_idle(served, count, seconds))


async def _idle(served: Served, count: int, seconds: float) -> dict[str, Any]:
    before_bytes = served.resident_bytes()
    clients: list[Client] = []
    while len(clients) < count:
        fresh = [Client(served.listen, len(clients) + number) for number in range(AT_ONCE)]
        await asyncio.gather(*(one.connect() for one in fresh))
        clients += fresh
    connected_bytes, began_s = served.resident_bytes(), served.processor_seconds()
    await asyncio.sleep(seconds)
    spent_s = served.processor_seconds() - began_s
    open_count = sum(one.is_open() for one in clients)
    await asyncio.gather(*(one.close() for one in clients))
    return {
        "connections": count,
        "still_open": open_count,
        "seconds": seconds,
        "kib_per_connection": round((connected_bytes - before_bytes) / count / 1024, 1),
        "server_mib": round(connected_bytes / 1024 / 1024),
        "processor_percent": round(spent_s / seconds * 100, 2),
    }


class Client:
    """The connection of one idle consumer."""

    def __init__(self, endpoint: str, number: int) -> None:
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 3_600_000)]
        self._channel = grpc.aio.insecure_channel(endpoint, options=own)
        self._who = (("x-mq-client-id", f"idle-{number}"),)
        self._telemetry: Any = None
        self._poll: Any = None

    async def connect(self) -> None:
        """Open the stream, check the answer to its settings, and begin to poll."""
        telemetry = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            service.TelemetryCommand.SerializeToString,
            service.TelemetryCommand.FromString,
        )
        self._telemetry = telemetry(None, metadata=self._who)
        settings = wire.Settings(client_type=wire.SIMPLE_CONSUMER)
        settings.subscription.group.name = "idle"
        await self._telemetry.write(service.TelemetryCommand(settings=settings))
        answer = await self._telemetry.read()
        assert answer.status.code == wire.Code.OK, answer.status
        request = receive_request("silent")
        request.long_polling_timeout.seconds = POLL_SECONDS
        receive = self._channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            service.ReceiveMessageRequest.SerializeToString,
            service.ReceiveMessageResponse.FromString,
        )
        self._poll = receive(request, metadata=self._who)

    def is_open(self) -> bool:
        """Return whether the Telemetry stream is open."""
        return not self._telemetry.done()

    async def close(self) -> None:
        """Cancel the calls, and close the connection."""
        self._poll.cancel()
        self._telemetry.cancel()
        await self._channel.close(None)
