"""What the README prints runs as printed (on a free port, so that tests may run side by side)."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TIDEWHEEL = Path(sys.executable).with_name("tidewheel")
SAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def ready(path: Path, broker: subprocess.Popen[bytes]) -> str:
    """The broker's address, once its ready file is there."""
    deadline = time.monotonic() + 30
    while not path.exists():
        assert broker.poll() is None, "the broker ended"
        assert time.monotonic() < deadline, "the broker does not get ready"
        time.sleep(0.05)
    return str(json.loads(path.read_text())["listen"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Path]:
    """A broker that serves; its ready file."""
    arguments = ["serve", "--store", tmp_path / "store", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    ready_file = tmp_path / "ready.json"
    process = subprocess.Popen([TIDEWHEEL, *arguments, "--ready-file", ready_file])
    try:
        ready(ready_file, process)
        yield ready_file
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def run_sample(sample: str, folder: Path, listen: str) -> str:
    """Run a program in a folder; returns what it prints."""
    app = folder / "app.py"
    app.write_text(sample.replace("127.0.0.1:8081", listen))
    run = subprocess.run(
        [sys.executable, app],
        cwd=folder,
        env=os.environ | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout


def test_the_sample_prints_a_message_that_came_when_it_was_due(tmp_path: Path, broker: Path) -> None:
    sent, received = run_sample(SAMPLES[0], tmp_path, json.loads(broker.read_text())["listen"]).splitlines()
    assert sent.startswith("sent 01")
    late_ms = re.fullmatch(r"received order 123 timed out (\d+) ms after it was due", received)
    assert late_ms is not None, f"early, or something else: {received}"


def test_the_transaction_commits_its_row_and_its_message(tmp_path: Path, broker: Path) -> None:
    where = json.loads(broker.read_text())
    run_sample(SAMPLES[1], tmp_path, where["listen"])
    with sqlite3.connect(tmp_path / "shop.db") as database:
        assert database.execute("SELECT id FROM orders").fetchall() == [(7,)]
    show = [TIDEWHEEL, "txn", "show", "order-7", "--topic", "order-created", "--http", where["http"]]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "COMMITTED" in shown.splitlines()[0]


def test_the_sample_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(SAMPLES[2])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed" in run.stdout, run.stdout


@pytest.mark.parametrize("path", re.findall(r"`((?:services|txn|spark_jobs|docs)/[\w./]*)`", README))
def test_what_it_points_at_exists(path: str) -> None:
    assert (ROOT / path).exists()
