"""A real PostgreSQL of a test session's own, alone or with synchronous standbys, where the machine has one.

Each server listens on a socket in a folder of its own, or on a host of its name (`tests.endurance.hosts`), at
that one's address. A standby is a copy of the primary (pg_basebackup) that follows its log; a
commit of the primary is answered once any one of the standbys has it on disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from pwd import getpwnam
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endurance.hosts import Hosts

USER, OWNER = "shop", "postgres"
PAGE_BYTES: Final = 8192
START_SECONDS, STANDBY_SECONDS = 60, 60
UNSYNCED: Final = ("-c", "fsync=off")
KEPT_FOR_STANDBYS: Final = ("-c", "wal_keep_size=1GB")
SILENT_SECONDS: Final = 3
OVER_LINKS_THAT_ARE_CUT: Final = (
    *("-c", f"wal_receiver_timeout={SILENT_SECONDS}s", "-c", f"wal_sender_timeout={SILENT_SECONDS}s"),
    *("-c", "wal_retrieve_retry_interval=500ms"),
)
"""A standby and its primary give up a connection on which nothing comes: as they come, after 60 s."""
_FOLLOWING: Final = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"


class PostgresServer:
    """One server; started again it keeps its socket, or address, and what it has written."""

    def __init__(self, name: str, options: tuple[str, ...], hosts: Hosts | None = None) -> None:
        self.name, self._options, self._hosts = name, options, hosts
        self.folder = Path(tempfile.mkdtemp(prefix="tidewheel-postgresql-"))
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, OWNER, OWNER)

    @property
    def url(self) -> str:
        """Where it serves, as libpq takes it."""
        return f"postgresql://{USER}@/postgres?host={self.host}"

    @property
    def host(self) -> str:
        """The folder of its socket, or its address, as libpq takes either."""
        return str(self.folder) if self._hosts is None else self._hosts.address(self.name)

    def make(self) -> None:
        """Make an empty server."""
        options = ("--auth=trust", "--data-checksums", "--no-sync", "-U", USER)
        command = [*as_owner(), program("initdb"), *options, "-D", str(self._data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        if self._hosts is not None:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\nhost replication all samenet trust\n")

    def make_standby_of(self, primary: str) -> None:
        """Copy the server at a host of libpq's; once started this one follows it under its own name."""
        source = f"host={primary} user={USER} application_name={self.name}"
        if self._hosts is not None:
            source += f" connect_timeout={SILENT_SECONDS} tcp_user_timeout={SILENT_SECONDS * 1000}"
        command = [program("pg_basebackup"), "-D", str(self._data), "-R", "-c", "fast", "-d", source]
        subprocess.run([*as_owner(), *command], check=True, cwd=self.folder)

    def start(self) -> None:
        """Start it, and wait until it serves."""
        address = "" if self._hosts is None else self.host
        place = [] if self._hosts is None else self._hosts.command(self.name)
        where = ["-c", f"listen_addresses={address}", "-c", f"unix_socket_directories={self.folder}"]
        program_of = [*place, *as_owner(), program("postgres"), "-D", str(self._data)]
        command = [*program_of, *where, *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        ends = time.monotonic() + START_SECONDS
        while not self._serves():
            assert self._process.poll() is None, self._log.read_text()[-3_000:]
            assert time.monotonic() < ends, self._log.read_text()[-3_000:]
            time.sleep(0.02)

    def kill(self) -> None:
        """End all its processes as `kill -9` does."""
        self._signal_all(signal.SIGKILL)
        assert self._process is not None, "a server that was not started"
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Let all its processes stand still."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after a pause."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        assert self._process is not None, "a server that was not started"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for one in (self._process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def promote(self) -> None:
        """Let a standby be a primary, that waits for no standby; returns when it is."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,), self._log.read_text()

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End it if it runs: at once, or in order (SIGINT)."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def back_up(self) -> None:
        """Take a backup of all it has (pg_basebackup), in place of the one before; it goes on meanwhile."""
        shutil.rmtree(self._backup, ignore_errors=True)
        source = f"host={self.host} user={USER}"
        command = [program("pg_basebackup"), "-D", str(self._backup), "-c", "fast", "-d", source]
        subprocess.run([*as_owner(), *command], check=True, cwd=self.folder)

    def restore_backup(self) -> None:
        """End it, and start it again with what the backup has."""
        self.stop()
        shutil.rmtree(self._data)
        self._backup.rename(self._data)
        self.start()

    def spoil_page_of(self, table: str, record: int) -> list[int]:
        """End it, change a byte in the page of a record, and start it; return all records of the page."""
        import psycopg

        on_page = (
            "SELECT record, pg_relation_filepath(tableoid), (ctid::text::point)[0]::int FROM {0} WHERE "
            "(tableoid, (ctid::text::point)[0]) = "
            "(SELECT tableoid, (ctid::text::point)[0] FROM {0} WHERE record = %s) ORDER BY record"
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            rows = connection.execute(on_page.format(table).encode(), (record,)).fetchall()
        self.stop(signal.SIGINT)  # in order: else the page is written again at the start
        _, path, block = rows[0]
        with (self._data / path).open("r+b") as file:
            file.seek((block + 1) * PAGE_BYTES - 10)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        self.start()
        return [number for number, _, _ in rows]

    def forget(self) -> None:
        """Delete what it has written."""
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _backup(self) -> Path:
        return self.folder / "backup"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _serves(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url).close()
            return True
        return False


class PostgresServers:
    """A primary, and the standbys of which any one must have a commit."""

    def __init__(self, standbys: int, options: tuple[str, ...], hosts: Hosts | None = None) -> None:
        options += KEPT_FOR_STANDBYS + (() if hosts is None else OVER_LINKS_THAT_ARE_CUT)
        primary, *others = names_of_servers(standbys)
        self.primary = PostgresServer(primary, options, hosts)
        self.standbys = [PostgresServer(name, options, hosts) for name in others]

    @property
    def url(self) -> str:
        """Where the primary serves, as libpq takes it."""
        return self.primary.url

    def start(self) -> None:
        """Make and start them all; returns when the primary waits for its standbys."""
        self.primary.make()
        self.primary.start()
        for one in self.standbys:
            one.make_standby_of(self.primary.host)
            one.start()
        if self.standbys:
            self._wait_for_standbys()

    def _wait_for_standbys(self) -> None:
        import psycopg

        names = ", ".join(one.name for one in self.standbys)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'")
            connection.execute("SELECT pg_reload_conf()")
            ends = time.monotonic() + STANDBY_SECONDS
            while connection.execute(_FOLLOWING).fetchone() != (len(self.standbys),):
                assert time.monotonic() < ends, f"not all of {names} follow"
                time.sleep(0.05)

    def stop(self) -> None:
        """End them all, and delete what they have written."""
        for one in (*self.standbys, self.primary):
            one.stop()
            one.forget()


def names_of_servers(standbys: int) -> list[str]:
    """Return the names of a primary and so many standbys, which are those of their hosts as well."""
    return ["primary", *(f"s{number}" for number in range(1, standbys + 1))]


@contextmanager
def running_servers(
    standbys: int = 0, options: tuple[str, ...] = (), hosts: Hosts | None = None
) -> Iterator[PostgresServers]:
    """Run a primary and so many standbys. Skips the test where there is no PostgreSQL."""
    pytest.importorskip("psycopg")
    if not shutil.which("initdb") or not has_owner():
        pytest.skip("no PostgreSQL server on this machine")
    servers = PostgresServers(standbys, options, hosts)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@contextmanager
def running_postgresql(*, syncs: bool = False) -> Iterator[str]:
    """Run a server alone; gives the SQLAlchemy URL. Skips the test where there is none.

    One that does not sync is faster, and a cluster takes no message over it.
    """
    with running_servers(options=() if syncs else UNSYNCED) as servers:
        yield servers.url.replace("postgresql", "postgresql+psycopg", 1)


@contextmanager
def running_standby(primary: str, name: str) -> Iterator[str]:
    """Run one standby more of the server with the URL `primary`; gives its own, as libpq takes it."""
    standby = PostgresServer(name, KEPT_FOR_STANDBYS)
    try:
        standby.make_standby_of(primary.partition("host=")[2])
        standby.start()
        yield standby.url
    finally:
        standby.stop()
        standby.forget()


def as_owner() -> list[str]:
    """PostgreSQL refuses to run as root; Debian's package brings a user.

    `Popen(user=...)` would fork in full, which a process with gRPC's threads does not always survive.
    """
    change = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--init-groups", "--"]
    return change if os.geteuid() == 0 else []


def has_owner() -> bool:
    """Return whether that user is there, where it is needed."""
    try:
        return os.geteuid() != 0 or bool(getpwnam(OWNER))
    except KeyError:
        return False


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL's: all lie where `initdb` does."""
    found = shutil.which("initdb")
    assert found is not None, "initdb was looked for"
    return str(Path(found).resolve().with_name(name))
