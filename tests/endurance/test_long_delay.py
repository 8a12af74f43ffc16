"""A delay of thirty days over a log that is kept for an hour, on a real store with a virtual clock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from commitlog.disk.real_disk import RealDisk
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC
from tidewheel import property_names

SEGMENT_BYTES = 5 << 20
BODY = "".join(chr(0x20 + place % 90) for place in range(3_000))
OPTIONS = ("--clock", "virtual", "--retain-hours", "1", "--segment-bytes", str(SEGMENT_BYTES))


def test_what_waits_outlives_its_log(tmp_path: Path, endurance: dict[str, Any]) -> None:
    store = tmp_path / "store"
    broker = endurance["BrokerProcess"](store, *OPTIONS)
    broker.start()
    http = httpx.Client(base_url=f"http://{broker.http}", timeout=60)
    set_ones = {name: set_timer(http, name) for name in ("arrives", "cancelled", "moved")}
    asyncio.run(fill(broker, endurance))
    last_offset = max(int(one["physical_offset"]) for one in set_ones.values())
    deadline = time.monotonic() + 60
    while min(int(path.name) for path in (store / "commitlog").iterdir()) <= last_offset:
        assert time.monotonic() < deadline, "retention does not come to them"
        advance(http, "3h")
    assert http.get("/api/timers/count").json()["count"] == 3

    named = {"topic": "t", "key": "cancelled"}
    assert http.post("/api/timers/cancel", json=named).json()["verdict"] == "CANCELLED"
    moved = {"topic": "t", "key": "moved", "to": str(int(set_ones["moved"]["due_ms"]) + 3_600_000)}
    assert http.post("/api/timers/move", json=moved).json()["verdict"] == "MOVED"
    broker.kill()
    broker.start()
    advance(http, "31d")
    broker.stop()
    arrived = [record for record in log_records(store) if record.topic == "t"]
    assert [properties.value_of(one.properties, property_names.TIMER_KEY) for one in arrived] == [
        "arrives",
        "moved",
    ]
    assert {one.body for one in arrived} == {BODY.encode()}


def set_timer(http: httpx.Client, name: str) -> dict[str, str]:
    timer = {"topic": "t", "body": BODY, "in": "30d", "timer_key": name}
    answer = http.post("/api/timers", json=timer)
    assert answer.status_code == 201, answer.text
    receipt: dict[str, str] = answer.json()
    return receipt


def advance(http: httpx.Client, by: str) -> None:
    answer = http.post("/api/clock/advance", json={"by": by})
    assert answer.status_code == 200, answer.text


async def fill(broker: Any, endurance: dict[str, Any]) -> None:
    """Writes some segments full of other messages."""
    async with endurance["Client"](broker.listen) as client:
        for number in range(150):
            assert await client.send("other", f"M{number}", b"x" * 100_000) == endurance["OK"]


def log_records(store: Path) -> list[Any]:
    scan = LogScan(RealDisk(store), SEGMENT_BYTES)
    return [found.record for found in scan if found.record.topic != TIMER_TOPIC]
