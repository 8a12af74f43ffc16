"""The broker's console in a child process, which is started by the first request for `/` and ends with the
broker.

    broker                                   child: tidewheel console --child
    starts it            --------------->    listens on a free loopback port
                         <--- its URL ----   first line of stdout
    request for `/`      --- a key   ---->   a line of stdin
                         <--- "taken" ----   a line of stdout. The link with the key is valid now

The child ends when its stdin is closed, which also happens if the broker is killed. If the child has ended,
the next request starts it again. A slow page affects the broker only through its API requests.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from services.http.calls import EVERY_ADDRESS
from services.server.errors import ConsoleFailed
from services.settings.config import HttpAddress
from tidewheel.command import COMMAND, without_settings

START_SECONDS: Final = 60
STOP_SECONDS: Final = 5

log = structlog.get_logger()


class ConsoleProcess:
    """The child process. `http` is the address of the broker, and `certificate` is its TLS certificate."""

    def __init__(self, http: HttpAddress, certificate: Path) -> None:
        self._http = http._replace(host=EVERY_ADDRESS.get(http.host, http.host))
        self._certificate = certificate
        self._process: Process | None = None
        self._url = ""
        self._one_at_a_time = asyncio.Lock()

    async def link(self, signs_in: bool) -> str:
        """Return the URL of the console, and start it if necessary. Raises `ConsoleFailed`."""
        try:
            async with self._one_at_a_time, asyncio.timeout(START_SECONDS):
                if self._process is None or self._process.returncode is not None:
                    await self._start()
                if not signs_in:
                    return self._url
                key = secrets.token_urlsafe(32)
                await self._heard(f"{key}\n".encode())
                return f"{self._url}/enter?key={key}"
        except (OSError, TimeoutError) as error:
            raise ConsoleFailed("Its log says more; or run one beside: tidewheel console.") from error

    async def close(self) -> None:
        """Stop the child process if it is running."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
                return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _start(self) -> None:
        command = [*COMMAND, "console", "--child", "--http", self._http.url, "--listen", "127.0.0.1:0"]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=self._environment(os.environ), start_new_session=True
        )
        self._url = await self._heard(b"")
        log.info("console serves", url=self._url, pid=self._process.pid)

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the child's environment, without settings of the broker and without a token."""
        certificate = {"TIDEWHEEL_HTTP_CA": str(self._certificate)} if self._http.is_tls else {}
        return without_settings(environ) | certificate

    async def _heard(self, line: bytes) -> str:
        """Write a line to the child and return the line that it answers."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        await process.stdin.drain()
        if not (heard := await process.stdout.readline()):
            await process.wait()
            raise ConnectionResetError("the console has ended")
        return heard.decode().strip()
