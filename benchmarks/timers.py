"""Timers: the structure alone, the broker's core, Redis for comparison, and the live server. Prints JSON.

    .venv/bin/python benchmarks/timers.py structure [--count 100000000]
    .venv/bin/python benchmarks/timers.py wheel     [--count 10000000]
    .venv/bin/python benchmarks/timers.py redis     [--count 1000000]
    .venv/bin/python benchmarks/timers.py crowd     [--count 1000000]
    .venv/bin/python benchmarks/timers.py steady    [--rate 2000] [--seconds 60]

Every part runs in a separate process, so that peak memory is measured per part. `beside` is the load of the
machine at the start and end of the run: figures of a loaded machine are less reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from parts.shell import BATCH, DAY_MS

COUNTS = {"structure": 1_000_000, "wheel": 200_000, "redis": 100_000, "crowd": 100_000, "steady": 0}
COMPARED = 1_000_000


def main() -> None:
    """Run the chosen benchmark, or the single part named on the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("what", choices=[*COUNTS, "part"])
    arguments.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    arguments.add_argument("--count", type=int, help="how many timers")
    arguments.add_argument("--days", type=float, default=1.0, help="structure: what they are spread over")
    arguments.add_argument("--rate", type=int, default=2_000, help="steady: deliveries per second")
    arguments.add_argument("--seconds", type=int, default=60, help="steady: for how long")
    arguments.add_argument("--only", choices=["uniform", "minute"], help="wheel: one of its two cases")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    if chosen.what == "part":
        name, *values = chosen.part
        print(json.dumps(vars(import_module(PARTS[name]))[name](*values)))
        return
    chosen.count = chosen.count or COUNTS[chosen.what]
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        figures = RUNS[chosen.what](Path(folder), chosen)
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({chosen.what: figures, "beside": beside}, indent=2))


def measured(*part: str) -> Any:
    """Run a part in a separate process; return its answer."""
    run = subprocess.run([sys.executable, __file__, "part", *part], stdout=subprocess.PIPE, text=True)
    run.check_returncode()
    return json.loads(run.stdout.splitlines()[-1])


def structure(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure the shipped structure, offsets only, and with a million timers also a heap and SQLite."""
    figures: dict[str, Any] = {"what": "offsets only, no records", "spread_over_days": chosen.days}
    span_ms = str(int(chosen.days * DAY_MS))
    for count in sorted({COMPARED, chosen.count}):
        names = ("partitions", "heap", "sqlite") if count == COMPARED else ("partitions",)
        for name in names:
            where = folder / name
            figures[f"{name}_{count}"] = measured(name, str(where), str(count), span_ms)
            shutil.rmtree(where, ignore_errors=True)
    return figures


def wheel(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure the shipped core: uniform over 30 days with a restart, and all within one minute."""
    figures: dict[str, Any] = {"body_bytes": 256, "count": chosen.count}
    if chosen.only != "minute":
        store = folder / "uniform"
        figures["uniform_over_30_days"] = measured("uniform", str(store), str(chosen.count))
        figures["open_after_kill"] = measured("restarted", str(store), "")
        figures["open_after_clean_stop"] = measured("restarted", str(store), "clean")
        shutil.rmtree(store)
    if chosen.only != "uniform":
        figures["within_one_minute"] = measured("minute", str(folder / "minute"), str(chosen.count))
    return figures


def redis(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure durable sets and memory of the core and of Redis, in turn."""
    count = str(chosen.count)
    figures: dict[str, Any] = {"count": chosen.count, "batch": BATCH, "batches_outstanding": 1}
    figures["ours"] = measured("ours", str(folder / "ours"), count)
    pending = measured("held", str(folder / "ours"), count)
    figures["redis"] = [
        measured("theirs", str(folder / f"redis-{how}"), count, how) for how in ("always", "everysec")
    ]
    empty = measured("held", str(folder / "empty"), "0")
    figures["compared"] = import_module("parts.timers.redis_set").compared(
        figures["ours"], pending, empty, figures["redis"]
    )
    return figures


def crowd(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure one second in which all timers are due."""
    figures: dict[str, Any] = import_module("parts.timers.live").crowd(folder, chosen.count, measured)
    return figures


def steady(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure the lateness of a steady stream."""
    steady_of = import_module("parts.timers.live").steady
    figures: dict[str, Any] = steady_of(folder, chosen.rate, chosen.seconds, measured)
    return figures


RUNS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "structure": structure,
    "wheel": wheel,
    "redis": redis,
    "crowd": crowd,
    "steady": steady,
}
PARTS = {
    "partitions": "parts.timers.structure",
    "heap": "parts.timers.structure",
    "sqlite": "parts.timers.structure",
    "uniform": "parts.timers.wheel",
    "restarted": "parts.timers.wheel",
    "minute": "parts.timers.wheel",
    "ours": "parts.timers.redis_set",
    "held": "parts.shell",
    "theirs": "parts.timers.redis_set",
    "prepare": "parts.timers.live",
    "delivered": "parts.timers.live",
    "serve": "parts.timers.server",
    "produce": "parts.timers.client",
    "consume": "parts.timers.client",
}
"""Module of each part; a part's process loads nothing else, which would count as its memory."""


if __name__ == "__main__":
    main()
