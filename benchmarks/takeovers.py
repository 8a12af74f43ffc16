"""Takeovers and sends of a cluster of two nodes, at an older commit and now, in turns. Prints JSON.

    .venv/bin/python benchmarks/takeovers.py [--old 4648fb2d] [--rounds 4] [--kills 10] [--seconds 4]

* takeovers: the leader is killed (`kill -9`); seconds until the other node, polled every 20 ms over HTTP, has
  accepted a message. The killed node is started again, and follows, before the next kill. p50 and p90 of all.
* sends: 1, 16 and 128 messages of 256 B in flight to the leader: sends per second, and processor
  microseconds of the leader for each. The best of all rounds.

Each round runs the older and the current sources, each with a new PostgreSQL and new stores; the older ones
come from git, and run with the packages installed here. One machine, one disk: only ratios are comparable.
`beside` is the load of the machine at the start and end of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from parts.cluster.engines import empty_log
from parts.cluster.large_store import send, until, view
from parts.cluster.senders import CONNECTIONS
from parts.front.server import Served
from parts.older import older
from parts.serving import serving

ROOT: Final = Path(__file__).parents[1]
CLUSTER: Final = str(Path(__file__).with_name("cluster.py"))
PERCENTILES: Final = (50, 90)


def main() -> None:
    """Measure both trees in turns, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--old", default="4648fb2d", help="the commit to compare with")
    arguments.add_argument("--rounds", type=int, default=4, help="how often each is measured")
    arguments.add_argument("--kills", type=int, default=10, help="takeovers of a round")
    arguments.add_argument("--seconds", type=float, default=4.0, help="for how long each rate is measured")
    arguments.add_argument("--engine", choices=["postgresql", "postgresql2"], default="postgresql")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    given = arguments.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tidewheel-bench-") as folder:
        trees = {"old": older(given.old, Path(folder, "sources")), "new": ROOT}
        took: dict[str, list[float]] = {name: [] for name in trees}
        rates: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
        for number in range(given.rounds):
            for name, tree in trees.items():
                print(f"round {number + 1}: {name}", file=sys.stderr)
                with pair(tree, given.engine, Path(folder, f"{name}-{number}")) as nodes:
                    for row, value in nodes.sends(given.seconds):
                        rates[name].setdefault(row, []).append(value)
                    took[name] += [nodes.takeover_seconds() for _ in range(given.kills)]
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    figures = {"takeovers": compared_takeovers(took), "sends": compared_rates(rates)}
    print(json.dumps({"old": given.old, **figures, "beside": beside}, indent=1))


class Pair:
    """Two nodes of a tree of sources, over the shared log at `url`."""

    def __init__(self, tree: Path, url: str, folder: Path) -> None:
        self._tree, self._url, self._folder = tree, url, folder
        self._stacks: dict[str, ExitStack] = {}
        self._nodes: dict[str, dict[str, Any]] = {}

    def start(self, name: str) -> None:
        """Start a stopped node."""
        self._stacks[name] = stack = ExitStack()
        options = ("--cluster", self._url, "--node", name)
        self._nodes[name] = stack.enter_context(serving(self._folder / name, *options, tree=self._tree))

    def stop(self) -> None:
        """Stop all nodes."""
        for stack in self._stacks.values():
            stack.close()

    def roles(self) -> dict[str, str]:
        """Return the names of the nodes by their reported roles."""
        return {view(node)["role"]: name for name, node in self._nodes.items()}

    def settled(self) -> tuple[str, str]:
        """Return (leader, follower), once the nodes have these roles."""
        until(lambda: self.roles().keys() == {"leading", "following"})
        roles = self.roles()
        return roles["leading"], roles["following"]

    def takeover_seconds(self) -> float:
        """Kill the leader; return the seconds until the other node has accepted a message; restart it."""
        leader, follower = self.settled()
        send(self._nodes[leader])
        os.kill(self._nodes[leader]["process"], signal.SIGKILL)
        began = time.monotonic()
        send(self._nodes[follower])
        seconds = time.monotonic() - began
        self._stacks[leader].close()
        self.start(leader)
        return seconds

    def sends(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Yield (row, value) of rates and processor costs of sends to the leader."""
        leader = self._nodes[self.settled()[0]]
        for in_flight in CONNECTIONS:
            process = Served(leader["process"], leader["listen"])
            used = process.processor_seconds()
            command = [
                sys.executable,
                CLUSTER,
                "part",
                "sends",
                leader["listen"],
                str(in_flight),
                str(seconds),
            ]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(ran.stdout.splitlines()[-1])
            yield f"{in_flight}_per_second", found["per_second"]
            cost = (process.processor_seconds() - used) / found["answered"]
            yield f"{in_flight}_leader_us", round(cost * 1e6, 1)


@contextmanager
def pair(tree: Path, engine: str, folder: Path) -> Iterator[Pair]:
    """Run an engine and two nodes of a tree over it."""
    folder.mkdir()
    with empty_log(engine) as url:
        command = [sys.executable, "-m", "services.cli.main", "cluster", "create", url]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
        nodes = Pair(tree, url, folder)
        try:
            for name in "ab":
                nodes.start(name)
            yield nodes
        finally:
            nodes.stop()


def compared_takeovers(took: dict[str, list[float]]) -> dict[str, Any]:
    """Return percentiles of both trees, in seconds, and their ratios."""
    rows: dict[str, Any] = {"count": {name: len(all_of) for name, all_of in took.items()}}
    for percent in PERCENTILES:
        row = {name: sorted(all_of)[len(all_of) * percent // 100] for name, all_of in took.items()}
        rows[f"p{percent}"] = {
            **{name: round(value, 2) for name, value in row.items()},
            "ratio": round(row["new"] / row["old"], 2),
        }
    return rows


def compared_rates(rates: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Return the best of each row of both trees, and their ratio."""
    rows = {}
    for row, old in rates["old"].items():
        best = max if row.endswith("per_second") else min
        both = {"old": best(old), "new": best(rates["new"][row])}
        rows[row] = {**both, "ratio": round(both["new"] / both["old"], 2)}
    return rows


if __name__ == "__main__":
    main()
