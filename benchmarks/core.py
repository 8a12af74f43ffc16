"""Cost of a call without a transport, at an older commit and now, in turns. Prints JSON.

    .venv/bin/python benchmarks/core.py [--old 102b719] [--rounds 5] [--count 4000] [--folder DIR]

Figures: processor microseconds of a broker's process for each message, from the bytes of a request to those
of its answer, with synced flushes (`parts/core_calls.py`): the minimum over all rounds for each of the two,
and their ratio. The older sources come from git, and run with the packages installed here.
`beside` is the load of the machine at the start and end of the run: figures of a loaded machine are less
reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.older import older

ROOT = Path(__file__).parents[1]
CALLS = Path(__file__).with_name("parts") / "core_calls.py"


def main() -> None:
    """Measure both trees in turns, and print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--old", default="102b719", help="the commit to compare with")
    arguments.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    arguments.add_argument("--count", type=int, default=4_000, help="how many messages a row")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    chosen = arguments.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="tidewheel-bench-") as folder:
        trees = {"old": older(chosen.old, Path(folder, "sources")), "new": ROOT}
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for number in range(chosen.rounds):
            for name, tree in trees.items():
                rounds[name].append(measured(tree, Path(folder, f"{name}-{number}"), chosen.count))
    least = {
        name: {row: min(one[row] for one in found) for row in found[0]} for name, found in rounds.items()
    }
    rows = {
        row: {"old": old, "new": least["new"][row], "ratio": round(least["new"][row] / old, 2)}
        for row, old in least["old"].items()
    }
    beside = {"cores": os.cpu_count(), "load_before": before[0], "load_after": os.getloadavg()[0]}
    print(json.dumps({"old": chosen.old, "processor_us": rows, "beside": beside}, indent=2))


def measured(tree: Path, store: Path, count: int) -> dict[str, float]:
    """Return the figures of one run with the sources of one tree, by row."""
    store.mkdir()
    command = [sys.executable, str(CALLS), str(store), str(count)]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
