"""Receiving: the core alone, over gRPC, Redis streams, and a long backlog. Prints JSON.

    .venv/bin/python benchmarks/receive.py           [--seconds 5] [--folder DIR]
    .venv/bin/python benchmarks/receive.py backlog   [--count 10000000]

Without an argument: receives and acknowledgements per second in batches of 32 of 256-byte messages, answered
when synced; bytes of log for each consumed message; and the wake-up time of a long poll. Redis streams
(`XREADGROUP` and `XACK` with `appendfsync always`) are measured in the same run.

`backlog`: one group consumes a backlog of `--count` messages; rate and memory at its start, middle and end.
The first message stays leased throughout, so the completed offsets never form a prefix of the queue.

Every part runs in a separate process, so that peak memory is measured per part. `beside` is the load of the
machine at the start and end of the run: figures of a loaded machine are less reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from parts.serving import serving

CONSUMERS = (1, 64)
STORED = 400_000
COMPARED_MAX = 1_000_000
ROUNDS = 500
ASLEEP = (0, 1_000)
PARTS = {
    "build": "parts.receive.core",
    "rate": "parts.receive.core",
    "fifo": "parts.receive.core",
    "log_bytes": "parts.receive.core",
    "backlog": "parts.receive.core",
    "over_grpc": "parts.receive.client",
    "wake_up": "parts.receive.client",
    "redis": "parts.receive.redis_streams",
}
"""Module of each part; a part's process loads nothing else, which would count as its memory."""


def main() -> None:
    """Measure the chosen benchmark, or run the single part named on the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("what", nargs="?", default="all", choices=["all", "backlog", "part"])
    arguments.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    arguments.add_argument("--seconds", type=float, default=5.0, help="for how long each rate is measured")
    arguments.add_argument("--count", type=int, default=1_000_000, help="backlog: how many messages wait")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    if chosen.what == "part":
        name, *values = chosen.part
        print(json.dumps(vars(import_module(PARTS[name]))[name](*values)))
        return
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        figures = (backlog if chosen.what == "backlog" else everything)(Path(folder), chosen)
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({"receive": figures, "beside": beside}, indent=2))


def everything(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure rates, bytes and latencies."""
    seconds = str(chosen.seconds)
    figures: dict[str, Any] = {"batch": 32, "body_bytes": 256, "core": {}, "over_grpc": {}, "redis": {}}
    for consumers in CONSUMERS:
        name = f"consumers_{consumers}"
        figures["core"][name] = measured("rate", built(folder), str(consumers), seconds)
        figures["core"][f"{name}_fifo"] = measured("fifo", new(folder), str(consumers), seconds)
        with serving(Path(built(folder))) as facts:
            figures["over_grpc"][name] = measured("over_grpc", facts["listen"], str(consumers), seconds)
        figures["redis"][name] = measured("redis", new(folder), str(STORED), str(consumers), seconds)
    figures["log_bytes_per_message"] = {
        f"acknowledged_by_{count}": measured("log_bytes", built(folder), str(count)) for count in (1, 32)
    }
    for asleep in ASLEEP:
        with serving(Path(new(folder))) as facts:
            figures[f"wake_up_beside_{asleep}_polls"] = measured(
                "wake_up", facts["listen"], str(ROUNDS), str(asleep)
            )
    return figures


def backlog(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure a whole backlog, and up to `COMPARED_MAX` entries of it in Redis."""
    compared = min(chosen.count, COMPARED_MAX)
    return {
        "count": chosen.count,
        "ours": measured("backlog", built(folder, chosen.count), str(chosen.count)),
        f"redis_{compared}": measured("redis", new(folder), str(compared), "8", str(chosen.seconds)),
    }


def new(folder: Path) -> str:
    """Return the path of a folder that does not exist yet."""
    return str(folder / f"store-{len(list(folder.iterdir()))}")


def built(folder: Path, count: int = STORED) -> str:
    """Return the path of a new store with `count` unreceived messages."""
    where = new(folder)
    measured("build", where, str(count))
    return where


def measured(*part: str) -> Any:
    """Run a part in a separate process; return its answer."""
    command = [sys.executable, __file__, "part", *part]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
