"""A broker as `tidewheel serve` in a process of its own, on free ports."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.command import TIDEWHEEL

LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Served:
    """The process of a broker, and where it listens."""

    process: subprocess.Popen[bytes]
    listen: str
    http: str

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as SIGTERM does."""
        self.process.terminate()
        self.process.wait()


def serve(folder: Path, *options: str) -> Served:
    """Start a broker on the store `folder/store`, and return it once it serves."""
    ready, log = folder / "ready", folder / "broker.log"
    ready.unlink(missing_ok=True)
    where = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready))
    store = ("--store", str(folder / "store"), "--segment-bytes", str(1 << 24))
    with log.open("ab") as said:
        process = subprocess.Popen([*TIDEWHEEL, "serve", *where, *store, *options], stderr=said)
    while not ready.exists():
        assert process.poll() is None, log.read_text()
        time.sleep(LOOK_AGAIN_SECONDS)
    facts = json.loads(ready.read_text())
    return Served(process, facts["listen"], facts["http"])
