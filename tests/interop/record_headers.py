"""Records the header blocks that official clients and tools send to a broker, with a table of 0 bytes.

    python -m tests.interop.record_headers tests/vectors/header_blocks.json [NAME ...]

Each client works through a proxy that repeats every byte and notes the blocks of HEADERS. The clients of
other languages must have been built (`make test-clients`), `grpcurl` and `h2load` be installed; those that
are not named stay as they are in the file. What it has for a table of 4,096 bytes, those that clients come
with (RFC 9113, 6.5.2), stays: it was recorded when brokers were served by grpcio, which asks for nothing
(f29c3a6).

The file: {client: {size of the table: [connection: [block in hex]]}}, of each connection the first blocks.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.front.grpc_wire import frame_message
from services.rpc.generated.definition_pb2 import Message, Resource, SystemProperties
from services.rpc.generated.service_pb2 import SendMessageRequest
from tests.clients.conftest import BrokerProcess
from tests.clients.libraries import LIBRARIES
from tests.clients.process_client import ProcessClient
from tests.clients.python_client import PythonClient

BLOCKS_PER_CONNECTION, CALLS, TOOL_SECONDS = 60, 30, 60
SERVICE = "apache.rocketmq.v2.MessagingService"
PREFACE_BYTES = 24
HEADERS, CONTINUATION, END_HEADERS, PADDED, PRIORITISED = 1, 9, 4, 8, 32


class Blocks:
    """The header blocks in what a client says."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._rest, self._skip, self._block = b"", PREFACE_BYTES, b""

    def take(self, data: bytes) -> None:
        """Note what blocks have come."""
        self._rest += data
        if self._skip:
            cut = min(self._skip, len(self._rest))
            self._skip, self._rest = self._skip - cut, self._rest[cut:]
        while len(self._rest) >= 9:
            end = 9 + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                return
            kind, flags, payload = self._rest[3], self._rest[4], self._rest[9:end]
            self._rest = self._rest[end:]
            if kind == HEADERS:
                assert not flags & PADDED, "no official client pads"
                self._block = payload[5:] if flags & PRIORITISED else payload
            elif kind == CONTINUATION:
                self._block += payload
            if kind in (HEADERS, CONTINUATION) and flags & END_HEADERS:
                self.blocks.append(self._block.hex())


class Proxy:
    """Repeats what goes to a broker and back, and keeps the blocks of each connection."""

    def __init__(self, target: str) -> None:
        self.found: list[Blocks] = []
        self._target = target.rpartition(":")
        self.address = ""

    async def serve(self, ready: threading.Event) -> None:
        """Serve until this is cancelled."""
        server = await asyncio.start_server(self._repeat, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await server.serve_forever()

    async def _repeat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        blocks = Blocks()
        self.found.append(blocks)
        theirs = await asyncio.open_connection(self._target[0], int(self._target[2]))
        await asyncio.gather(pipe(reader, theirs[1], blocks), pipe(theirs[0], writer, None))


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, blocks: Blocks | None) -> None:
    """Repeat one direction until it ends."""
    try:
        while data := await reader.read(65_536):
            if blocks is not None:
                blocks.take(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    """A proxy in a thread of its own."""
    proxy, ready, loop = Proxy(target), threading.Event(), asyncio.new_event_loop()
    serving = loop.create_task(proxy.serve(ready))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([serving])), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(60)


def recorded(name: str) -> list[list[str]]:
    """The blocks of each connection of a client that sends, receives and acknowledges."""
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder, "store"))
        broker.start()
        try:
            with proxied(broker.listen) as proxy:
                TOOLS[name](proxy.address) if name in TOOLS else play(made(name, proxy.address))
                found = [one.blocks[:BLOCKS_PER_CONNECTION] for one in proxy.found if one.blocks]
        finally:
            broker.stop()
    return found


def made(name: str, listen: str) -> Any:
    """A client that calls an address in plaintext."""
    if name == "python":
        return PythonClient(listen)
    environment = os.environ | {"TIDEWHEEL_CLIENT_PLAINTEXT": "1"}
    return ProcessClient(LIBRARIES[name], listen, environment)


def play(client: Any) -> None:
    """Work as a producer and a consumer do."""
    try:
        for number in range(CALLS):
            client.send("recorded", f"body {number}", keys=[f"order-{number}"])
        consumer = client.simple("recorded", "g-recorded")
        taken = 0
        while taken < CALLS:
            for got in consumer.receive(8):
                consumer.ack(got)
                taken += 1
    finally:
        client.close()


def grpcurl(address: str) -> None:
    """Ask for health, and send: each call asks for the description first, on a connection of its own."""
    sent = {"topic": {"name": "recorded"}, "body": "eA==", "systemProperties": {"messageId": "m"}}
    calls = {f"{SERVICE}/SendMessage": {"messages": [sent]}, "grpc.health.v1.Health/Check": {}}
    for path, asked in calls.items():
        header = ("-H", "x-mq-client-id: grpcurl")
        command = ["grpcurl", "-plaintext", *header, "-d", json.dumps(asked), address, path]
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_SECONDS)


def h2load(address: str) -> None:
    """Send the same again and again, as benchmarks do."""
    message = SendMessageRequest(
        messages=[
            Message(
                topic=Resource(name="recorded"), body=b"x", system_properties=SystemProperties(message_id="m")
            )
        ]
    )
    fields = ("content-type: application/grpc", "te: trailers", "x-mq-client-id: h2load")
    headers = [word for one in fields for word in ("-H", one)]
    with tempfile.NamedTemporaryFile() as body:
        body.write(frame_message(message.SerializeToString()))
        body.flush()
        url = f"http://{address}/{SERVICE}/SendMessage"
        command = ["h2load", "-n", str(CALLS), "-c", "1", "-m", "1", "-d", body.name, *headers, url]
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_SECONDS)


TOOLS = {"grpcurl": grpcurl, "h2load": h2load}


def main() -> None:
    """Record the clients that are named, or all."""
    vectors = Path(sys.argv[1])
    found = json.loads(vectors.read_text())
    for name in sys.argv[2:] or ("python", *LIBRARIES, *TOOLS):
        found[name]["0"] = recorded(name)
    vectors.write_text(json.dumps(found, indent=0) + "\n")
    for name, tables in found.items():
        counts = {table: sum(map(len, connections)) for table, connections in tables.items()}
        print(name, "blocks by table:", counts)


if __name__ == "__main__":
    main()
