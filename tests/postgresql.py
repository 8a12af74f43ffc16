"""A real PostgreSQL server of a test session's own, where the machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def as_ordinary_user() -> list[str]:
    """PostgreSQL refuses to run as root; Debian's package brings the user `postgres`."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


@contextmanager
def running_postgresql(*, syncs: bool = False) -> Iterator[str]:
    """Run a server on a socket of its own; gives the SQLAlchemy URL. Skips the test where there is none.

    One that does not sync is faster, and no place for a shared log.
    """
    pytest.importorskip("psycopg")
    if not shutil.which("initdb") or (os.geteuid() == 0 and subprocess.run(["id", "postgres"]).returncode):
        pytest.skip("no PostgreSQL server on this machine")
    with folder_of_server() as folder:
        initdb = [*as_ordinary_user(), "initdb", "--auth=trust", "-U", "shop", "--no-sync"]
        subprocess.run([*initdb, str(folder / "data")], check=True, stdout=subprocess.DEVNULL)
        with started(folder, "" if syncs else "-c fsync=off"):
            yield f"postgresql+psycopg://shop@/postgres?host={folder}"


@contextmanager
def running_standby(primary: str, name: str) -> Iterator[str]:
    """Run a standby of a server that `running_postgresql` gave the URL of; gives its own URL."""
    with folder_of_server() as folder:
        host = primary.partition("host=")[2]
        copy = [*as_ordinary_user(), "pg_basebackup", "--host", host, "--username", "shop", "--no-sync"]
        given = ("--pgdata", str(folder / "data"), "--checkpoint=fast", "--write-recovery-conf")
        subprocess.run([*copy, *given], check=True)
        with started(folder, f"-c cluster_name={name}"):
            yield primary.replace(host, str(folder))


@contextmanager
def folder_of_server() -> Iterator[Path]:
    """Give a folder of the user that servers run as."""
    folder = Path(subprocess.check_output([*as_ordinary_user(), "mktemp", "-d"], text=True).strip())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def started(folder: Path, settings: str) -> Iterator[None]:
    """Run the server whose data lie in a folder, on a socket there."""
    pg_ctl = [*as_ordinary_user(), "pg_ctl", "--pgdata", str(folder / "data"), "--silent"]
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} {settings}"
    subprocess.run([*pg_ctl, "--wait", "--log", str(folder / "log"), "-o", options, "start"], check=True)
    try:
        yield
    finally:
        subprocess.run([*pg_ctl, "--mode=immediate", "stop"], check=True)
