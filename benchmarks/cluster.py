"""Cost of a second copy: sends compared with a single broker, and the fold rate of a node. Prints JSON.

    .venv/bin/python benchmarks/cluster.py sends   [--seconds 5] [--rounds 2] [--arms alone postgresql ...]
    .venv/bin/python benchmarks/cluster.py folding [--seconds 10] [--arms postgresql ...] [--bodies 256 4096]

    .venv/bin/python benchmarks/cluster.py large   [--records 10000000] [--timers 1000000] [--arms postgresql]

* sends: 1, 16 and 128 messages of 256 B in flight, sent by a process that writes frames: sends per second,
  latency, and processor time of the leader and of the follower for each send. Targets are a single broker,
  which syncs its own disk for every answer, and two nodes over each engine (`parts/cluster/engines.py`),
  both at the leader and through the follower, which forwards. The arms take turns, `rounds` times; the best
  of each figure counts. `of_alone` is the rate as a share of the single broker's.
* folding: MiB of log per second that a leader's core writes through an engine without a port, and that a
  node with an empty disk folds; `folds_per_write` is the second over the first.

* large: a store of `--records` messages and `--timers` timers: the times to begin a cluster with it, to copy
  it to a second node, to move the lead, to make the former leader follow again, and to take over after
  kill -9.

Everything runs on one machine, on whose disk every copy is synced; only ratios are comparable. `beside` is
the load of the machine at the start and end of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Final

from parts.cluster import large_store
from parts.cluster.engines import ALONE, ENGINES, Served, empty_log, served, shared_log
from parts.cluster.senders import CONNECTIONS
from parts.front.server import Served as Process

PARTS: Final = {
    "sends": "parts.cluster.senders",
    "write": "parts.cluster.folding",
    "fold": "parts.cluster.folding",
}


def main() -> None:
    """Measure the chosen part, or run the step named on the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    sends = commands.add_parser("sends")
    sends.add_argument("--rounds", type=int, default=2)
    folding = commands.add_parser("folding")
    folding.add_argument("--bodies", type=int, nargs="*", default=[256, 4_096])
    large = commands.add_parser("large")
    large.add_argument("--records", type=int, default=10_000_000)
    large.add_argument("--timers", type=int, default=1_000_000)
    large.add_argument("--body", type=int, default=850, help="bytes of each body; 191 more make its record")
    large.add_argument("--arms", nargs="*", choices=ENGINES, default=["postgresql"])
    large.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    for one, arms, seconds in ((sends, (ALONE, *ENGINES), 5.0), (folding, ENGINES, 10.0)):
        one.add_argument("--seconds", type=float, default=seconds, help="for how long each rate is measured")
        one.add_argument("--arms", nargs="*", choices=arms, default=arms)
        one.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    part = commands.add_parser("part")
    part.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.command == "part":
        name, *values = given.part
        print(json.dumps(vars(import_module(PARTS[name]))[name](*values)))
        return
    before = os.getloadavg()
    measure = {"sends": measure_sends, "folding": measure_folding, "large": measure_large}[given.command]
    figures = measure(given)
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({given.command: figures, "beside": beside}, indent=1))


def measure_sends(given: argparse.Namespace) -> dict[str, Any]:
    """Measure each arm in turn, `rounds` times."""
    figures: dict[str, Any] = {arm: {} for arm in given.arms}
    for number in range(given.rounds):
        for arm, found in figures.items():
            print(f"round {number + 1}: {arm}", file=sys.stderr)
            with working_folder(given) as folder, served(arm, folder) as nodes:
                for way, in_flight in product(("leader", "follower"), CONNECTIONS):
                    if getattr(nodes, way) is not None:
                        ran = sent(nodes, way, in_flight, given.seconds)
                        keep_best(found.setdefault(way, {}), f"in_flight_{in_flight}", ran)
    if ALONE in figures:
        compare(figures)
    return figures


def sent(nodes: Served, way: str, in_flight: int, seconds: float) -> dict[str, Any]:
    """Send to one of the nodes; return the figures, with each process's processor time of a send."""
    asked = getattr(nodes, way)["listen"]
    processes = {
        name: Process(node["process"], node["listen"])
        for name, node in nodes._asdict().items()
        if node is not None
    }
    before = {name: one.processor_seconds() for name, one in processes.items()}
    ran: dict[str, Any] = measured("sends", asked, str(in_flight), str(seconds))
    answered = ran.pop("answered")
    for name, one in processes.items():
        ran[f"{name}_us_per_send"] = round((one.processor_seconds() - before[name]) / answered * 1e6)
    return ran


def keep_best(found: dict[str, Any], name: str, ran: dict[str, Any]) -> None:
    """Keep the better of each figure of two runs."""
    kept = found.setdefault(name, ran)
    for figure, value in ran.items():
        better = max if figure == "per_second" else min
        kept[figure] = better(kept[figure], value)


def compare(figures: dict[str, Any]) -> None:
    """Add to each rate its share of the single broker's rate."""
    alone = figures[ALONE]["leader"]
    for ways in figures.values():
        for rows in ways.values():
            for name, row in rows.items():
                row["of_alone"] = round(row["per_second"] / alone[name]["per_second"], 3)


def measure_folding(given: argparse.Namespace) -> dict[str, Any]:
    """Measure the writes of a leader's core over each engine, and then the fold of a node over that log."""
    figures: dict[str, Any] = {}
    for arm in given.arms:
        for body in given.bodies:
            print(f"{arm}, bodies of {body} B", file=sys.stderr)
            with working_folder(given) as folder, shared_log(arm) as url:
                wrote = measured("write", url, str(folder / "writer"), str(body), str(given.seconds))
                folded = measured("fold", url, str(folder / "folder"), str(wrote["messages"]))
            ratio = round(folded["mib_per_second"] / wrote["mib_per_second"], 2)
            figures[f"{arm}_{body}"] = {"writes": wrote, "folds": folded, "folds_per_write": ratio}
    return figures


def measure_large(given: argparse.Namespace) -> dict[str, Any]:
    """Create a cluster from a large store over each engine."""
    figures: dict[str, Any] = {"messages": given.records, "timers": given.timers, "body_bytes": given.body}
    for arm in given.arms:
        with working_folder(given) as folder, empty_log(arm) as url:
            figures[arm] = large_store.measure(url, folder, given.records, given.timers, given.body)
    return figures


@contextmanager
def working_folder(given: argparse.Namespace) -> Iterator[Path]:
    """Yield a folder for stores, removed at the end of the block."""
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tidewheel-bench-") as folder:
        yield Path(folder)


def measured(*part: str) -> Any:
    """Run a part in a separate process; return its answer."""
    command = [sys.executable, __file__, "part", *part]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
