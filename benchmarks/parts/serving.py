"""`tidewheel serve` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 60


@contextmanager
def serving(store: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Run `tidewheel serve` on a store; yield its `process`, and its addresses `listen` and `http`."""
    ready = store.with_suffix(".ready")
    where = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready))
    command = [sys.executable, "-m", "services.cli.main", "serve", "--store", str(store), *where, *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.02)
        yield {**json.loads(ready.read_text()), "process": process.pid}
    finally:
        process.terminate()
        process.wait()
