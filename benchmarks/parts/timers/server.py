"""The server of `tidewheel serve` in a separate process, with a record of when each flush was durable.

Everything is the shipped composition (`services.server.run`); only `LiveBroker.apply_flush` is extended: it
records the wall time at which it is called and the durable log offset after the flush. When the server stops
it writes these notes to the given file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlog.log.flush import Flush
from parts.shell import memory
from services.live.live_broker import LiveBroker
from services.server import run
from services.settings.config import Address, ServeSettings, load

START_SECONDS = 60
noted: list[tuple[int, int]] = []


class Noting(LiveBroker):
    """A live broker that records the time and the durable offset of each flush."""

    def apply_flush(self, flush: Flush) -> None:
        """Apply the flush; record the time before it and the durable offset after it."""
        moment_ns = time.time_ns()
        super().apply_flush(flush)
        noted.append((self.core.durable_offset, moment_ns))


def serve(where: str, ready: str, notes: str) -> dict[str, Any]:
    """Serve until SIGTERM, then write the notes; return the memory of the process."""
    vars(run)["LiveBroker"] = Noting
    nowhere = Address("127.0.0.1", 0)
    settings = load(ServeSettings, store=Path(where), listen=nowhere, http=nowhere, ready_file=Path(ready))
    run.serve(settings, lambda _: None)
    Path(notes).write_text(json.dumps(noted))
    return memory()


@contextmanager
def serving(store: Path) -> Iterator[dict[str, Any]]:
    """Run the server over a store; yield its facts, which get its memory and notes at the end."""
    ready, notes = store.parent / "ready", store.parent / "notes"
    script = Path(__file__).parents[2] / "timers.py"
    command = [sys.executable, str(script), "part", "serve", str(store), str(ready), str(notes)]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        while not ready.exists():
            assert process.poll() is None, "the server did not start"
            assert time.monotonic() - began < START_SECONDS, "the server does not start"
            time.sleep(0.02)
        facts = json.loads(ready.read_text()) | {"start_seconds": round(time.monotonic() - began, 2)}
        yield facts
    finally:
        process.terminate()
        out, _ = process.communicate()
    facts["memory"] = json.loads(out.splitlines()[-1])
    facts["notes"] = json.loads(notes.read_text())
