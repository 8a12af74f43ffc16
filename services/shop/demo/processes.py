"""The child processes of a run.

They are started as `tidewheel` commands, monitored, and restarted after an injected crash.

A child process creates a ready file when it accepts requests. After an injected crash it is restarted on the
same address with its next faults, unless it must remain stopped. Any other exit fails the run. A child
process can also be halted and resumed on the same addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from services.shop.faults import EXIT_BY_FAULT, FAULT_LOG_VARIABLE, FAULTS_VARIABLE
from tidewheel.command import COMMAND, without_settings
from tidewheel.errors import TidewheelError

if TYPE_CHECKING:
    from pathlib import Path

    from services.shop.demo.settings import Layout

READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
POLL_S = 0.05
LOG_TAIL_LINES = 5
ANY_FREE_PORT = "127.0.0.1:0"
HTTP = "--http"


def tidewheel(*arguments: str) -> list[str]:
    """Return the command line of a `tidewheel` command with the current Python interpreter."""
    return [*COMMAND, *arguments]


@dataclass(slots=True)
class Child:
    """A child process: its command line, the faults of its next starts and of every start, and its current
    process.
    """

    name: str
    arguments: list[str]
    armed: list[str] = field(default_factory=list)
    always_armed: str = ""
    listen: str = ANY_FREE_PORT
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    is_left_dead: bool = False
    is_halted: bool = False


class Processes:
    """All child processes of a run. They are stopped in reverse order when the block ends."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: list[Child] = []
        self._stopping = threading.Event()
        self._failure: TidewheelError | None = None
        self._watch = threading.Thread(target=self._watch_children, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_watching()
        for child in reversed(self._children):
            stop(child)

    def start(
        self, *arguments: str, name: str, armed: list[str] | None = None, always_armed: str = ""
    ) -> dict[str, Any]:
        """Start a service and return the content of its ready file.

        Raises:
            TidewheelError: If the process exits or does not become ready. The message quotes the last lines
                of its log.
        """
        child = Child(name, list(arguments), list(armed or []), always_armed)
        ready = self._launch(child)
        self._children.append(child)
        return ready

    def stop(self, *names: str) -> None:
        """Stop child processes in reverse order."""
        for child in reversed(self._children):
            if child.name in names:
                self._children.remove(child)
                stop(child)

    def halt(self, name: str) -> None:
        """Stop a child process until `resume`."""
        child = self._child(name)
        child.is_halted = True
        stop(child)

    def resume(self, name: str) -> None:
        """Restart a halted child process on its previous addresses."""
        child = self._child(name)
        self._launch(child)
        child.is_halted = False

    def leave_dead(self, name: str) -> None:
        """Do not restart a child process after an injected crash."""
        self._child(name).is_left_dead = True

    def is_running(self, name: str) -> bool:
        """Return whether a child process is running."""
        process = self._child(name).process
        return process is not None and process.poll() is None

    def _child(self, name: str) -> Child:
        return next(child for child in self._children if child.name == name)

    def stop_watching(self) -> None:
        """Stop monitoring, so that child processes may exit."""
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()

    def require_health(self) -> None:
        """Raise the error of a failed child process."""
        if self._failure is not None:
            raise self._failure

    def restarts(self) -> int:
        """Return the number of restarts after injected crashes."""
        return sum(child.restarts for child in self._children)

    def _launch(self, child: Child) -> dict[str, Any]:
        ready_file = self._layout.logs / f"{child.name}.json"
        ready_file.unlink(missing_ok=True)
        arguments = [*child.arguments, "--listen", child.listen, "--ready-file", str(ready_file)]
        with self._log(child).open("ab") as log:
            child.process = subprocess.Popen(
                tidewheel(*arguments),
                env=self._environment(child),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ready = self._await_ready(child, ready_file)
        child.listen = ready["listen"]
        if HTTP in child.arguments and "http" in ready:
            child.arguments[child.arguments.index(HTTP) + 1] = ready["http"]
        return ready

    def _environment(self, child: Child) -> dict[str, str]:
        next_armed = child.armed.pop(0) if child.armed else ""
        faults = ",".join(filter(None, (next_armed, child.always_armed)))
        ours = {FAULTS_VARIABLE: faults, FAULT_LOG_VARIABLE: str(self._layout.faults)}
        ours["no_grpc_proxy"] = "127.0.0.1"  # the official client would connect through a proxy
        return without_settings(os.environ) | ours | {"HOME": str(self._layout.home)}

    def _await_ready(self, child: Child, ready_file: Path) -> dict[str, Any]:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and child.process is not None and child.process.poll() is None:
            if ready_file.exists():
                ready: dict[str, Any] = json.loads(ready_file.read_text())
                return ready
            time.sleep(POLL_S)
        stop(child)
        raise self._failed(child, "did not get ready")

    def _watch_children(self) -> None:
        while not self._stopping.wait(POLL_S) and self._failure is None:
            for child in list(self._children):
                self._look_after(child)

    def _look_after(self, child: Child) -> None:
        """Restart a child process after an injected crash, and record any other exit as a failure."""
        ended = child.process.poll() if child.process else None
        if ended is None or child.is_halted or child not in self._children:
            return
        if ended == EXIT_BY_FAULT and child.is_left_dead:
            return
        try:
            if ended != EXIT_BY_FAULT:
                raise self._failed(child, f"ended with exit code {ended}")
            self._launch(child)
            child.restarts += 1
        except TidewheelError as failure:
            self._failure = failure

    def _failed(self, child: Child, how: str) -> TidewheelError:
        log = self._log(child)
        last_words = " / ".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return TidewheelError(f"The {child.name} process {how}: {last_words[-500:]} Its log is {log}.")

    def _log(self, child: Child) -> Path:
        return self._layout.logs / f"{child.name}.log"


def stop(child: Child) -> None:
    """Terminate a child process. If it does not exit in time, it is killed."""
    if child.process is None:
        return
    child.process.terminate()
    try:
        child.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
