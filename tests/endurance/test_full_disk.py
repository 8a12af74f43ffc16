"""A disk that is really full: sends are refused, what was taken in is still served, and room heals it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.rpc.generated.definition_pb2 import Code

DISK_MIB = 48
SEGMENT_BYTES = 5 << 20
TOPIC, GROUP = "t", "g"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own size needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_sends_and_nothing_else(small_disk: Path, endurance: dict[str, Any]) -> None:
    options = ("--segment-bytes", str(SEGMENT_BYTES), "--housekeeping-ms", "100")
    broker = endurance["BrokerProcess"](small_disk / "store", *options)
    broker.start()
    asyncio.run(play(broker, endurance, small_disk))
    assert broker.stop() == 0
    command = [sys.executable, "-m", "services.cli.main", "store", "verify"]
    verify = [*command, "--store", str(small_disk / "store")]
    verified = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def play(broker: Any, endurance: dict[str, Any], disk: Path) -> None:
    async with endurance["Client"](broker.listen) as client:
        for number in range(100):
            assert await client.send(TOPIC, f"before-{number}", b"x" * 1000) == Code.OK
        fill(disk / "other-data")
        refused = await send_until(client, lambda code: code != Code.OK, "full")
        assert refused == Code.TOO_MANY_REQUESTS
        got = await client.receive(TOPIC, GROUP)
        assert len(got) == 32
        assert {await client.ack(TOPIC, GROUP, one) for one in got} == {Code.OK}
        (disk / "other-data").unlink()
        assert await send_until(client, lambda code: code == Code.OK, "room") == Code.OK
        received = {one.system_properties.message_id for one in got}
        while batch := await client.receive(TOPIC, GROUP, 1):
            assert {await client.ack(TOPIC, GROUP, one) for one in batch} == {Code.OK}
            new = {one.system_properties.message_id for one in batch}
            assert not new & received, "an acknowledged message came again"
            received |= new
        assert {f"before-{number}" for number in range(100)} <= received


def fill(path: Path) -> None:
    """Writes until nothing more goes on the disk."""
    with path.open("wb", buffering=0) as other:
        while os.statvfs(path).f_bavail:
            other.write(b"x" * 4096)


async def send_until(client: Any, done: Any, name: str) -> int:
    for number in range(20_000):
        code = int(await client.send(TOPIC, f"{name}-{number}", b"x" * 1000))
        if done(code):
            return code
        if code != Code.OK:
            await asyncio.sleep(0.05)
    raise AssertionError("the disk never got that far")
