"""What the composition root keeps beside the store."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from services.config import Address
from services.run import count_boot, listen_on


def test_starts_are_counted_even_when_a_power_cut_emptied_the_counter(tmp_path: Path) -> None:
    assert [count_boot(tmp_path) for _ in range(3)] == [0, 1, 2]
    (tmp_path / "boots").write_text("")
    assert [count_boot(tmp_path) for _ in range(2)] == [1, 2]


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
