"""A terminal that is closed: what runs in it ends as by SIGTERM, and under `nohup` goes on."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.clients.conftest import wait_until
from tidewheel import Client
from tidewheel.command import COMMAND, without_settings

SECONDS = 30


class InTerminal:
    """A broker in a terminal of its own."""

    def __init__(self, folder: Path, before: Sequence[str] = ()) -> None:
        self._ours, theirs = pty.openpty()
        self._ready = folder / "ready.json"
        where = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(self._ready)]
        store = ["--store", str(folder / "store"), "--segment-bytes", str(16 << 20)]
        self.process = subprocess.Popen(
            [*before, *COMMAND, "serve", *where, *store],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, start_new_session=True,
            env=without_settings(os.environ), preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        wait_until(lambda: self._ready.exists() or self.process.poll() is not None, SECONDS)
        self.http = str(json.loads(self._ready.read_text())["http"])

    def close(self) -> None:
        """Close the terminal, which sends SIGHUP."""
        os.close(self._ours)


def test_a_broker_whose_terminal_is_closed_ends_cleanly(tmp_path: Path) -> None:
    broker = InTerminal(tmp_path)
    with Client(broker.http, token="") as client:
        client.send("orders", "kept")
    broker.close()
    assert broker.process.wait(SECONDS) == 0
    assert not (tmp_path / "ready.json").exists()


def test_a_broker_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    broker = InTerminal(tmp_path, before=("nohup",))
    broker.close()
    with urlopen(f"http://{broker.http}/readyz") as answer:
        assert answer.status == 200
    broker.process.terminate()
    assert broker.process.wait(SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_is_named_in_the_log(tmp_path: Path, number: signal.Signals) -> None:
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    where = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "serve", *where, "--store", str(tmp_path / "store"), "--segment-bytes", str(16 << 20)],
            stderr=out, env=without_settings(os.environ),
        )  # fmt: skip
    wait_until(lambda: ready.exists() or process.poll() is not None, SECONDS)
    process.send_signal(number)
    assert process.wait(SECONDS) == 0
    stopped = json.loads(log.read_text().splitlines()[-1])
    assert (stopped["event"], stopped["why"]) == ("stopped", number.name)


@pytest.mark.parametrize("command", ["serve", "dev"])
@pytest.mark.parametrize(
    "redirected", [">/dev/full", ">/dev/full 2>/dev/full", ">&-", "2>&-", "<&- >&- 2>&-", "> >(exit)"]
)
def test_a_broker_outlives_what_it_prints_to(tmp_path: Path, command: str, redirected: str) -> None:
    """A full disk, closed descriptors, a pipe that nobody reads: it serves, and ends cleanly."""
    ready = tmp_path / "ready.json"
    where = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", str(tmp_path / "store")]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" {redirected}', "bash", *COMMAND, command, *where],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=without_settings(os.environ) | {"TIDEWHEEL_READY_FILE": str(ready)},
    )  # fmt: skip
    wait_until(lambda: ready.exists() or process.poll() is not None, SECONDS)
    with Client(str(json.loads(ready.read_text())["http"]), token="") as client:
        client.send("orders", "kept")
    process.terminate()
    assert process.wait(SECONDS) == 0
