"""A broker as it is composed: what it loads, what it refuses, how its answers leave."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commitlog.errors import NotAStore
from services.process.ports import listen_on
from services.server.run import run
from services.settings.config import Address, HttpAddress, ServeSettings, load


def test_a_broker_serves_without_the_library_of_grpc(tmp_path: Path) -> None:
    serving_once = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from services.server import run\n"
        "from services.settings.config import Address, ServeSettings, load\n"
        "nowhere = Address('127.0.0.1', 0)\n"
        "where = dict(store=Path(sys.argv[1]), listen=nowhere, http=nowhere)\n"
        "run.serve(load(ServeSettings, **where), lambda _: os.kill(os.getpid(), signal.SIGTERM))\n"
        "print('grpc' in sys.modules, 'services.front.port' in sys.modules)"
    )
    command = [sys.executable, "-c", serving_once, str(tmp_path / "store")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout == "False True\n", ran.stderr


def test_a_store_of_rocketmq_that_is_refused_gets_no_file_of_ours(tmp_path: Path) -> None:
    for name in ("abort", "lock", "commitlog/00000000000000000000", "config/topics.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    nowhere = Address("127.0.0.1", 0)
    settings = load(ServeSettings, store=tmp_path, listen=nowhere, http=HttpAddress(*nowhere))
    with pytest.raises(NotAStore, match="tidewheel store import"):
        asyncio.run(run(settings, lambda _: None))
    assert sorted(tmp_path.rglob("*")) == before


def test_answers_leave_at_once_and_do_not_wait_for_acknowledgements_of_earlier_ones() -> None:
    async def accepted() -> int:
        delays: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            delays.set_result(
                writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        with listen_on(Address("127.0.0.1", 0), "--listen") as listening:
            server = await asyncio.start_server(connected, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            is_undelayed = await delays
            writer.close()
            server.close()
        return is_undelayed

    assert asyncio.run(accepted())
