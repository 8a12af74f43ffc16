"""Small files beside the store, and the HTTP port, as a broker and a node have them."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from commitlog.records.message import MessageType
from services.broker.spine.settings import BrokerSettings
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from services.process.ports import listen_on
from services.server.parts import Ready, count_boot, ready_file, serving_http
from services.settings.config import Address, HttpAddress
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
READY = Ready(Address("127.0.0.1", 1), HttpAddress("127.0.0.1", 2), 0, 1 << 24)


def test_a_link_in_place_of_a_small_file_or_of_its_fresh_copy_is_never_followed(tmp_path: Path) -> None:
    """Whoever may write into the folder of the ready file, such as /tmp, has it overwrite nothing of ours."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    ready, boots = tmp_path / "ready.json", tmp_path / "boots"
    for name in (ready, boots):
        for link in (
            name,
            name.with_name(f"{name.name}.new"),
            name.with_name(f"{name.name}.{os.getpid()}.new"),
        ):
            link.symlink_to(precious)
    assert count_boot(tmp_path) == 1
    with ready_file(ready, READY):
        assert json.loads(ready.read_text())["http_url"] == "http://127.0.0.1:2"
        assert not ready.is_symlink()
    assert not ready.exists()
    assert not boots.is_symlink()
    assert boots.read_text() == "1\n"
    assert boots.stat().st_mode & 0o777 == 0o640
    assert precious.read_text() == "kept"


def test_starts_are_counted_even_when_a_power_cut_emptied_the_counter(tmp_path: Path) -> None:
    assert [count_boot(tmp_path) for _ in range(3)] == [0, 1, 2]
    (tmp_path / "boots").write_text("")
    assert [count_boot(tmp_path) for _ in range(2)] == [1, 2]


def test_a_poll_that_waits_when_the_broker_stops_is_answered() -> None:
    async def polled() -> httpx.Response:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as writer, listen_on(Address("127.0.0.1", 0), "--http") as bound:
            live = LiveBroker(
                MemoryDisk(), BrokerSettings(segment_bytes=1 << 20), lambda: NOW_MS, loop.call_later, writer
            )
            await live.call(live.core.topics.create, "t", MessageType.NORMAL, 1)
            url = f"http://127.0.0.1:{bound.getsockname()[1]}/api/topics/t/arrivals?wait_ms=20000"
            async with httpx.AsyncClient(timeout=30) as client:
                async with serving_http(bound, make_app(live, Metrics(live, [])), None, live.receivers.close):
                    poll = asyncio.create_task(client.get(url))
                    while not live.receivers._long_polls._waiting:
                        await asyncio.sleep(0)
                answer = await poll
            await live.close()
        return answer

    answer = asyncio.run(asyncio.wait_for(polled(), 60))
    assert (answer.status_code, answer.json()["messages"]) == (200, [])
