"""A broker in a separate process that can be started, killed, and restarted on the same store and ports.

The broker is configured only by its options. TIDEWHEEL_* variables and tidewheel.toml are ignored.

The test process uses only HTTP, because it is an application without the broker's packages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from tidewheel.command import COMMAND, without_settings

START_SECONDS = 60
STOP_SECONDS = 20
ANSWER_SECONDS = 600
DYING_SECONDS = 5
LOOK_AGAIN_SECONDS = 0.01
LAST_LINES = 40
SEGMENT_BYTES = 16 * 1024 * 1024
DIRECT = build_opener(ProxyHandler({}))
"""Requests to the broker on loopback bypass the proxies of the environment."""


class BrokerFailed(Exception):
    """The broker under the tests did not start, refused, or gave no answer: it ended, or hangs."""


class BrokerProcess:
    """A broker with a virtual clock whose files are in `folder`."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        start_seconds: float = START_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._folder, self._options = folder, options
        self._start_seconds, self._answer_seconds = start_seconds, answer_seconds
        self._ready, self._log = folder / "ready.json", folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.listen = self.http = "127.0.0.1:0"

    @property
    def is_running(self) -> bool:
        """Whether the broker process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the broker. Raises `BrokerFailed` if it was never started."""
        return self._started().pid

    def start(self) -> None:
        """Start the broker and wait until it is ready. `BrokerFailed` includes the last log lines."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            alone = without_settings(os.environ) | {"HOME": str(self._folder)}
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, env=alone)
        self._await_ready()
        facts = json.loads(self._ready.read_text())
        self.listen, self.http = facts["listen"], facts["http"]

    def kill(self) -> None:
        """Kill the broker as `kill -9` does. Acknowledged messages are on disk.

        Raises `BrokerFailed` if the broker was never started.
        """
        process = self._started()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop the broker as SIGTERM does, and kill it if it does not stop."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def get(self, path: str, **query: str) -> Any:
        """Send a GET request to the HTTP interface and return the JSON of the answer."""
        return json.loads(self._answer(Request(f"http://{self.http}{path}?{urlencode(query)}")))

    def post(self, path: str, body: object) -> Any:
        """Send a POST request to the HTTP interface and return the JSON of the answer."""
        data, json_type = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = Request(f"http://{self.http}{path}", data, json_type, method="POST")
        return json.loads(self._answer(request))

    def scrape(self) -> str:
        """Return the text of `/metrics`."""
        return self._answer(Request(f"http://{self.http}/metrics")).decode()

    def _command(self) -> list[str]:
        serve = [*COMMAND, "serve", "--clock", "virtual"]
        where = ["--listen", self.listen, "--http", self.http, "--ready-file", str(self._ready)]
        store = ["--store", str(self._folder / "store"), "--segment-bytes", str(SEGMENT_BYTES)]
        return [*serve, *where, *store, *self._options]

    def _await_ready(self) -> None:
        ends = time.monotonic() + self._start_seconds
        while not self._ready.exists():
            if self._process is not None and (code := self._process.poll()) is not None:
                raise BrokerFailed(f"The broker ended at its start, {_ending(code)}. {self._last_words()}")
            if time.monotonic() > ends:
                self.stop()
                raise BrokerFailed(
                    f"The broker was not ready within {self._start_seconds:g} s, and was stopped: the "
                    f"machine may be busy. {self._last_words()}"
                )
            time.sleep(LOOK_AGAIN_SECONDS)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        if not lines:
            return f"It wrote nothing to its log, {self._log}."
        return "\n".join((f"The end of its log, {self._log}:", *lines))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerFailed("The broker was never started. Call start() first.")
        return self._process

    def _answer(self, request: Request) -> bytes:
        process = self._started()
        try:
            with DIRECT.open(request, timeout=self._answer_seconds) as answer:
                return bytes(answer.read())
        except HTTPError as refusal:
            said = refusal.read().decode(errors="replace")
            raise BrokerFailed(f"{request.full_url} answered {refusal.code}: {said}") from None
        except (OSError, HTTPException) as failure:
            said = str(failure) or type(failure).__name__
            raise BrokerFailed(
                f"{request.full_url} was not answered: {said}. {_fate(process)} {self._last_words()}"
            ) from failure


def _fate(process: subprocess.Popen[bytes]) -> str:
    """Return whether a broker that gave no answer has ended, and how.

    A process that is ending closes its ports first.
    """
    try:
        return f"The broker has ended, {_ending(process.wait(DYING_SECONDS))}."
    except subprocess.TimeoutExpired:
        return f"The broker runs still, as process {process.pid}: it is busy, stopped or hangs."


def _ending(code: int) -> str:
    """Return how a process ended, according to its exit code."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
