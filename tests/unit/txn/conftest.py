"""A real PostgreSQL server where the machine has one; the tests that need it are skipped elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    import rocketmq  # noqa: F401 # opens its log under the HOME of its first import

if TYPE_CHECKING:
    from collections.abc import Iterator


def as_ordinary_user() -> list[str]:
    """PostgreSQL refuses to run as root; Debian's package brings the user `postgres`."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("psycopg")
    if not shutil.which("initdb") or (os.geteuid() == 0 and subprocess.run(["id", "postgres"]).returncode):
        pytest.skip("no PostgreSQL server on this machine")
    folder = Path(subprocess.check_output([*as_ordinary_user(), "mktemp", "-d"], text=True).strip())
    pg_ctl = [*as_ordinary_user(), "pg_ctl", "--pgdata", str(folder / "data"), "--silent"]
    subprocess.run(
        [*as_ordinary_user(), "initdb", "--auth=trust", "-U", "shop", str(folder / "data")], check=True
    )
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    subprocess.run([*pg_ctl, "--wait", "--log", str(folder / "log"), "-o", options, "start"], check=True)
    yield f"postgresql+psycopg://shop@/postgres?host={folder}"
    subprocess.run([*pg_ctl, "--mode=immediate", "stop"], check=True)
    shutil.rmtree(folder)
