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
def running_postgresql() -> Iterator[str]:
    """Run a server on a socket of its own; gives the SQLAlchemy URL. Skips the test where there is none."""
    pytest.importorskip("psycopg")
    if not shutil.which("initdb") or (os.geteuid() == 0 and subprocess.run(["id", "postgres"]).returncode):
        pytest.skip("no PostgreSQL server on this machine")
    folder = Path(subprocess.check_output([*as_ordinary_user(), "mktemp", "-d"], text=True).strip())
    pg_ctl = [*as_ordinary_user(), "pg_ctl", "--pgdata", str(folder / "data"), "--silent"]
    initdb = [*as_ordinary_user(), "initdb", "--auth=trust", "-U", "shop", str(folder / "data")]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL)
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    subprocess.run([*pg_ctl, "--wait", "--log", str(folder / "log"), "-o", options, "start"], check=True)
    try:
        yield f"postgresql+psycopg://shop@/postgres?host={folder}"
    finally:
        subprocess.run([*pg_ctl, "--mode=immediate", "stop"], check=True)
        shutil.rmtree(folder)
