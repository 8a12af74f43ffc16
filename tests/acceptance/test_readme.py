"""What the README prints runs as printed (on a free port, so that tests may run side by side)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def ready(path: Path, broker: subprocess.Popen[bytes]) -> str:
    """The broker's address, once its ready file is there."""
    deadline = time.monotonic() + 30
    while not path.exists():
        assert broker.poll() is None, "the broker ended"
        assert time.monotonic() < deadline, "the broker does not get ready"
        time.sleep(0.05)
    return str(json.loads(path.read_text())["listen"])


def test_the_sample_prints_a_message_that_came_when_it_was_due(tmp_path: Path) -> None:
    sample, _ = SAMPLES
    tidewheel = Path(sys.executable).with_name("tidewheel")
    arguments = ["serve", "--store", tmp_path / "store", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    ready_file = tmp_path / "ready.json"
    broker = subprocess.Popen([tidewheel, *arguments, "--ready-file", ready_file])
    try:
        app = tmp_path / "app.py"
        app.write_text(sample.replace("127.0.0.1:8081", ready(ready_file, broker)))
        run = subprocess.run(
            [sys.executable, app],
            env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(20) == 0
    sent, received = run.stdout.splitlines()
    assert sent.startswith("sent 01")
    late_ms = re.fullmatch(r"received order 123 timed out (\d+) ms after it was due", received)
    assert late_ms is not None, f"early, or something else: {received}"


def test_the_sample_test_passes(tmp_path: Path) -> None:
    _, sample = SAMPLES
    (tmp_path / "test_orders.py").write_text(sample)
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
