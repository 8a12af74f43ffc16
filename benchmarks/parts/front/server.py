"""The broker under test: `tidewheel serve` in a separate process, with the chosen event loop.

python server.py asyncio|uvloop STORE READY_FILE sync|async
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.server import run
from services.settings.config import Address, ServeSettings, load

START_SECONDS = 60
CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class Served:
    """A broker's process, and the address of its protocol port."""

    process: int
    listen: str

    def processor_seconds(self) -> float:
        """Return the processor time used so far (Linux: the clock id of clock_getcpuclockid, in ns)."""
        return time.clock_gettime(~self.process << 3 | CPUCLOCK_SCHED)

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        resident = Path(f"/proc/{self.process}/statm").read_text().split()[1]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def started(loop: str, flush: str) -> Iterator[Served]:
    """Run a broker on a temporary store, removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-front-") as folder:
        ready = Path(folder) / "ready"
        command = [sys.executable, __file__, loop, str(Path(folder) / "store"), str(ready), flush]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ends = time.monotonic() + START_SECONDS
            while not ready.exists():
                assert process.poll() is None, "the broker did not start"
                assert time.monotonic() < ends, "the broker does not start"
                time.sleep(0.05)
            yield Served(process.pid, json.loads(ready.read_text())["listen"])
        finally:
            process.terminate()
            process.wait()


def serve(loop: str, store: str, ready: str, flush: str) -> None:
    """Serve until SIGTERM."""
    if loop == "asyncio":
        vars(run)["new_event_loop"] = asyncio.new_event_loop
    nowhere = Address("127.0.0.1", 0)
    settings = load(
        ServeSettings, store=Path(store), listen=nowhere, http=nowhere, ready_file=Path(ready), flush=flush
    )
    run.serve(settings, lambda _: None)


if __name__ == "__main__":
    serve(*sys.argv[1:])
