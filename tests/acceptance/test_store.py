"""`tidewheel store` beside a broker that runs, after it was killed, and on a copy of what it held."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import tidewheel

COMMAND = (sys.executable, "-m", "services.cli.main")
MESSAGE_COUNT = 20


@pytest.fixture
def broker(tmp_path: Path, eventually: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A broker over the folder `store` that was sent some messages."""
    ready_file = tmp_path / "ready"
    addresses = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready_file)
    sizes = ("--store", tmp_path / "store", "--segment-bytes", 8 * 1024 * 1024)
    with subprocess.Popen([*COMMAND, "serve", *map(str, sizes + addresses)]) as process:
        try:
            eventually(ready_file.exists)
            http = json.loads(ready_file.read_text())["http"]
            for number in range(MESSAGE_COUNT):
                later = ("--in", "1h") if number % 5 == 0 else ()
                sent = tidewheel("send", "orders", f"order {number}", *later, "--http", http)
                assert sent.returncode == 0, sent.stderr
            yield process
        finally:
            process.kill()


def info(store: Path) -> Any:
    return json.loads(tidewheel("store", "info", "--store", store, "--json").stdout)


def test_a_store_is_looked_at_proved_and_copied_while_its_broker_runs(
    broker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    live = info(store)
    assert live["pending_timers"] == MESSAGE_COUNT // 5
    assert live["topics"][0]["message_count"] == MESSAGE_COUNT - live["pending_timers"]
    proof = tidewheel("store", "verify", "--store", store)
    assert (proof.returncode, "nothing is damaged" in proof.stdout) == (0, True), proof
    assert f"{MESSAGE_COUNT} queue entries" in proof.stdout
    assert f"{MESSAGE_COUNT} of the entries are in no file yet" in proof.stdout
    dumps = [
        tidewheel("store", "dump", "queue", "orders", number, "--store", store).stdout for number in range(4)
    ]
    entries = [json.loads(line) for said in dumps for line in said.splitlines()]
    sent_count = MESSAGE_COUNT - live["pending_timers"]
    assert [one["where"] for one in entries] == ["log"] * sent_count, "no snapshot yet"
    refused = tidewheel("store", "repair", "--yes", "--store", store)
    assert (refused.returncode, "TW-102" in refused.stderr) == (3, True), refused
    copied = tidewheel("store", "snapshot", tmp_path / "copy", "--store", store)
    assert copied.returncode == 0, copied.stderr
    assert tidewheel("store", "verify", "--store", tmp_path / "copy").returncode == 0
    assert info(tmp_path / "copy")["durable_offset"] == live["durable_offset"]
    broker.kill()
    broker.wait()
    assert tidewheel("store", "verify", "--store", store).returncode == 0
    assert info(store)["topics"] == live["topics"]
    assert tidewheel("store", "repair", "--yes", "--store", store).stdout == "there is nothing to repair\n"
