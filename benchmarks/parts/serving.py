"""`tidewheel serve` in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START_SECONDS = 60


@contextmanager
def serving(store: Path, *options: str, tree: Path = ROOT) -> Iterator[dict[str, Any]]:
    """Run `tidewheel serve` of a tree of sources; yield its `process`, `listen` and `http` addresses."""
    store = store.absolute()
    ready = store.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    where = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready))
    command = [sys.executable, "-m", "services.cli.main", "serve", "--store", str(store), *where, *options]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
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
