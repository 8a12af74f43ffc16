"""`kill -9` in the middle of a crowded second: afterwards each timer is in the log once.

There are 20,000 of them; with fifty rounds (`make endurance`) 100,000.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from commitlog.disk.real_disk import RealDisk
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC
from tidewheel import property_names

BATCH = 1_000
MARGIN_SECONDS = 8
SEGMENT_BYTES = 16 << 20
BODY = "x" * 256


@pytest.mark.parametrize("way", ["in memory", "in partitions", "in partitions, killed twice"])
def test_a_kill_in_a_crowded_second_repeats_and_loses_nothing(
    tmp_path: Path, endurance: dict[str, Any], pytestconfig: pytest.Config, way: str
) -> None:
    if way != "in partitions, killed twice" and pytestconfig.getoption("--rounds") < 50:
        pytest.skip("make endurance: here the one that is killed twice tells as much")
    count = 100_000 if pytestconfig.getoption("--rounds") >= 50 else 20_000
    broker = endurance["BrokerProcess"](tmp_path / "store", "--segment-bytes", str(SEGMENT_BYTES))
    broker.start()
    due_ms = int(time.time() * 1000 + 1000 * (MARGIN_SECONDS + 2 * seconds_to_set(broker.http, count)))
    offsets = set_timers(broker.http, due_ms, count)
    if way != "in memory":
        assert broker.stop() == 0  # leaves a checkpoint: all of them lie ready in partitions
        broker.start()
    assert time.time() * 1000 < due_ms, "setting them took too long for a crowd"
    sleep_until(due_ms)
    wait_until_at_most(broker.http, count * 3 // 4)
    broker.kill()
    before = delivered(tmp_path / "store")
    broker.start()
    if way.endswith("twice"):
        time.sleep(0.3)
        broker.kill()
        broker.start()
    wait_until_at_most(broker.http, 0)
    assert broker.stop() == 0
    after = delivered(tmp_path / "store")
    repeated = sum(after.values()) - len(after)
    print(f"{way}: {len(before)} delivered at the kill, {len(after)} in all, {repeated} repeated,", end=" ")
    print(f"{len(offsets - after.keys())} missing")
    assert 0 < len(before) < len(after), "it was not killed in the middle"
    assert before.keys() <= after.keys()
    assert repeated == 0
    assert after.keys() == offsets


def seconds_to_set(http: str, count: int) -> float:
    """How long it takes to set them all on this machine as it is now, by a sample."""
    began = time.monotonic()
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        for _ in range(4):
            set_batch(client, "sample", [int(time.time() * 1000)] * BATCH)
    return (time.monotonic() - began) / 4 * count / BATCH


def set_timers(http: str, due_ms: int, count: int) -> set[int]:
    """Sets them all, due spread over one second; returns their offsets."""
    offsets: set[int] = set()
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        for first in range(0, count, BATCH):
            dues = [due_ms + (first + number) * 7 % 1000 for number in range(BATCH)]
            offsets |= set_batch(client, "t", dues)
    assert len(offsets) == count
    return offsets


def set_batch(client: httpx.Client, topic: str, dues: list[int]) -> set[int]:
    timers = [{"topic": topic, "body": BODY, "at": str(due_ms)} for due_ms in dues]
    answer = client.post("/api/timers", json={"timers": timers})
    assert answer.status_code == 200, answer.text
    return {int(one["physical_offset"]) for one in answer.json()["timers"]}


def delivered(store: Path) -> Counter[int]:
    """How often the log holds the delivery of each timer; asserts that none is early."""
    counts: Counter[int] = Counter()
    due_ms: dict[int, int] = {}
    for found in LogScan(RealDisk(store), SEGMENT_BYTES):
        record = found.record
        if record.topic == TIMER_TOPIC:
            due_ms[record.physical_offset] = int(
                properties.value_of(record.properties, property_names.DUE_MS)
            )
        elif record.topic != "sample" and (
            timer_offset := properties.value_of(record.properties, property_names.TIMER_OFFSET)
        ):
            counts[int(timer_offset)] += 1
            assert record.store_ms >= due_ms[int(timer_offset)], "early"
    return counts


def wait_until_at_most(http: str, count: int) -> None:
    """Returns when so few wait, at the latest."""
    deadline = time.monotonic() + 180
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        while client.get("/api/timers/count").json()["count"] > count:
            assert time.monotonic() < deadline, "too many wait on"
            time.sleep(0.02)


def sleep_until(wall_ms: int) -> None:
    time.sleep(max(0.0, wall_ms / 1000 - time.time()))
