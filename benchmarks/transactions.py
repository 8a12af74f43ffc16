"""Transactions: the core alone and over gRPC, compared with the alternatives. Prints JSON.

    .venv/bin/python benchmarks/transactions.py [--seconds 5] [--checks 10000] [--folder DIR]

Figures: half + commit per second with 1 and 64 producers, check-backs per second, bytes of log for each; in
the same run an outbox in SQLite with a relay, and two plain sends (`parts/transactions/client.py`). Bodies
have 256 bytes. `beside` is the load of the machine at the start and end of the run: figures of a loaded
machine are less reliable.
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

PRODUCERS = (1, 64)
WAYS = ("half_commit", "half_rows_commit", "two_sends", "outbox")
PARTS = {
    "core": "parts.transactions.core",
    "checks": "parts.transactions.core",
    "rate": "parts.transactions.client",
    "asked": "parts.transactions.client",
}


def main() -> None:
    """Measure everything, or run the single part named on the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    arguments.add_argument("--seconds", type=float, default=5.0, help="for how long each rate is measured")
    arguments.add_argument("--checks", type=int, default=10_000, help="how many halves are stuck")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    if chosen.part:
        name, *values = chosen.part
        print(json.dumps(vars(import_module(PARTS[name]))[name](*values)))
        return
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        figures = {
            "core": core(Path(folder), chosen.seconds, chosen.checks),
            "grpc": grpc(Path(folder), chosen.seconds, chosen.checks),
        }
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({"transactions": figures, "beside": beside}, indent=2))


def core(folder: Path, seconds: float, checks: int) -> dict[str, Any]:
    """Measure the core alone."""
    figures: dict[str, Any] = {}
    for producers in PRODUCERS:
        figures[f"producers_{producers}"] = measured(
            "core", str(folder / f"core-{producers}"), str(producers), str(seconds)
        )
    figures["check_backs"] = measured("checks", str(folder / "checks"), str(checks))
    return figures


def grpc(folder: Path, seconds: float, checks: int) -> dict[str, Any]:
    """Measure over gRPC, each way with a separate server and client."""
    figures: dict[str, Any] = {}
    for way in WAYS:
        for producers in PRODUCERS:
            with serving(folder / f"{way}-{producers}") as facts:
                figures[f"{way}_{producers}"] = measured(
                    "rate", way, facts["listen"], str(folder), str(producers), str(seconds)
                )
    with serving(folder / "asked", "--check-immunity-ms", "5000") as facts:
        figures["check_backs"] = measured("asked", facts["listen"], str(checks))
    return figures


def measured(*part: str) -> Any:
    """Run a part in a separate process; return its answer."""
    run = subprocess.run([sys.executable, __file__, *part], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
