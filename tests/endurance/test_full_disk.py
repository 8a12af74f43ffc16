"""A disk that is really full: sends are refused, what was taken in is still served, and room heals it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

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


def test_a_small_volume_takes_messages_and_says_what_it_takes(
    small_disk: Path, endurance: dict[str, Any]
) -> None:
    """Without --segment-bytes: 48 MiB once meant a start, and then a refusal of every message."""
    broker = endurance["BrokerProcess"](small_disk / "store")
    broker.start()

    async def send() -> int:
        async with endurance["Client"](broker.listen) as client:
            return int(await client.send(TOPIC, "first", b"x"))

    assert asyncio.run(send()) == Code.OK
    with urlopen(f"http://{broker.http}/readyz") as answer:
        assert answer.read() == b"ready\n"
    assert broker.stop() == 0
    assert "16 MiB taken at once: log files of 8 MiB and one in reserve" in broker.log()


def test_a_volume_without_room_and_a_full_one_are_one_sentence_each(small_disk: Path) -> None:
    command = [sys.executable, "-m", "services.cli.main", "serve", "--store", str(small_disk / "store")]
    listening = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    asked = [*command, *listening, "--segment-bytes", str(1 << 30)]
    refused = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert refused.returncode == 5
    assert "TW-222 The disk of the store has no room. A new store with segments of 1024 MiB" in refused.stderr
    assert "Give --segment-bytes 8388608" in refused.stderr
    fill(small_disk / "other-data")
    refused = subprocess.run([*command, *listening], capture_output=True, text=True, check=False)
    assert refused.returncode == 5
    assert refused.stderr.splitlines()[-1].startswith("TW-222 The disk of the store has no room.")
    assert "Traceback" not in refused.stderr
