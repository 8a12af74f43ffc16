"""A real MariaDB of a test module's own, where the machine has one (Debian: mariadb-server).

It runs as an ordinary user in a temporary folder and listens on a socket there, nowhere else. What it has
written is deleted at the end, so it syncs nothing. An empty server takes seconds to make: it is made once in
a process of tests, and copied (`forget_made` deletes it).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from pwd import getpwnam
from typing import Any, Final
from unittest.mock import patch

import pytest

OWNER: Final = "mysql"
START_SECONDS: Final = 120
DATABASE: Final = "shop"
SPARING: Final = (
    *("--skip-networking", "--skip-log-bin", "--skip-name-resolve", "--performance-schema=OFF"),
    *("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0"),
    *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--key-buffer-size=1M"),
)


class MariadbServer:
    """One server with an empty database `shop`; `url` is that of its superuser, who has no password."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidewheel-mariadb-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, OWNER, OWNER)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "socket"

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        return f"mysql+pymysql://root@/{DATABASE}?unix_socket={self.socket}"

    def make(self) -> None:
        """Make an empty server."""
        copy = ["cp", "--recursive", "--preserve=mode", f"{_empty().folder / 'data'}", f"{self._data}"]
        subprocess.run([*as_owner(), *copy], check=True, cwd=self.folder)

    def install(self) -> None:
        """Make an empty server as its package does."""
        options = ("--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal")
        command = [*as_owner(), "mariadb-install-db", *options, f"--datadir={self._data}"]
        with self._log.open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=self.folder)

    def start(self) -> None:
        """Start it, and wait until it serves."""
        where = (f"--datadir={self._data}", f"--socket={self.socket}", f"--pid-file={self.folder}/pid")
        # A server that starts deletes all temporary tables in its folder for these, also another server's.
        where += (f"--tmpdir={self.folder}",)
        command = [*as_owner(), program("mariadbd"), "--no-defaults", *where, *SPARING]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        ends = time.monotonic() + START_SECONDS
        while not self._serves():
            assert self._process.poll() is None, self._log.read_text()[-3_000:]
            assert time.monotonic() < ends, self._log.read_text()[-3_000:]
            time.sleep(0.02)

    def run(self, *statements: str) -> None:
        """Carry out statements of its superuser."""
        with self._connected() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def stop(self) -> None:
        """End it if it runs, at once, and delete what it has written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _connected(self) -> Any:
        import pymysql

        where = {"unix_socket": str(self.socket), "ssl_disabled": True}
        return pymysql.connect(user="root", autocommit=True, **where)

    def _serves(self) -> bool:
        import pymysql

        with suppress(pymysql.OperationalError):
            self.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4")
            return True
        return False


@contextmanager
def running_mariadb() -> Iterator[MariadbServer]:
    """Run a server. Skips the test where there is no MariaDB, or no driver for it."""
    pytest.importorskip("pymysql")
    if not (has_program("mariadbd") and shutil.which("mariadb-install-db") and has_owner()):
        pytest.skip("no MariaDB server on this machine")
    server = MariadbServer()
    try:
        server.make()
        server.start()
        with certificates_read_once():
            yield server
    finally:
        server.stop()


@cache
def _empty() -> MariadbServer:
    """Make a server that is only copied."""
    server = MariadbServer()
    server.install()
    return server


def forget_made() -> None:
    """Delete what new servers were copied of."""
    if _empty.cache_info().currsize:
        _empty().stop()
        _empty.cache_clear()


@contextmanager
def certificates_read_once() -> Iterator[None]:
    """Let connections of PyMySQL that name no certificate share a TLS context.

    Each makes one, though it speaks through a socket, and reads all certificates of the system for it: for
    25 ms of processor time.
    """
    from pymysql.connections import Connection

    make = Connection._create_ssl_ctx
    shared = cache(lambda: make(None, {}))

    def context(one: Any, given: Any) -> Any:
        return make(one, given) if given else shared()

    with patch.object(Connection, "_create_ssl_ctx", context):
        yield


def as_owner() -> list[str]:
    """Return what comes before a command: MariaDB refuses to run as root; Debian's package brings a user."""
    change = ["setpriv", "--pdeathsig=KILL", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "--"]
    return change if os.geteuid() == 0 else []


def has_owner() -> bool:
    """Return whether that user is there, where it is needed."""
    try:
        return os.geteuid() != 0 or bool(getpwnam(OWNER))
    except KeyError:
        return False


def has_program(name: str) -> bool:
    """Return whether there is a program; servers lie in `sbin`, which users need not have in their path."""
    return shutil.which(name, path=_PATH) is not None


def program(name: str) -> str:
    """Return the path of a program."""
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} was looked for"
    return found


_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
