"""The process that has the connections of clients, so that clients can be killed and paused.

    clients, in the test  ---  carrier, a process  ---  node

When it is killed or stands still the node has what it has of a client that is killed or stands still:
connections that are reset, or whose other end neither reads nor says anything. The clients themselves live
on, and know what they were told.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress

CHUNK_BYTES = 1 << 16


class Carrier:
    """A carrier to the node at `target` (`HOST:PORT`); started again it keeps its address."""

    def __init__(self, target: str) -> None:
        self.listen, self._target = "127.0.0.1:0", target
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it; returns when it serves."""
        command = [sys.executable, "-E", "-S", __file__, self.listen, self._target]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.listen = self._process.stdout.readline().strip()
        assert self.listen, "a carrier has ended at its start"

    def kill(self) -> None:
        """End it as `kill -9` does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def pause(self) -> None:
        """Let it stand still."""
        assert self._process is not None, "a carrier that was not started"
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after a pause."""
        assert self._process is not None, "a carrier that was not started"
        self._process.send_signal(signal.SIGCONT)


async def carry(listen: str, target: str) -> None:
    """Serve until the process ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                node_reader, node_writer = await asyncio.open_connection(*address(target))
                await asyncio.gather(pass_on(reader, node_writer), pass_on(node_reader, writer))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, *address(listen))
    host, port = server.sockets[0].getsockname()[:2]
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until one side hangs up; then the other is hung up too."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def address(told: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`."""
    host, _, port = told.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(carry(*sys.argv[1:]))
