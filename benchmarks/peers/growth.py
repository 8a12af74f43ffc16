"""Cost of a message at a broker that has grown and at a small one. Prints JSON, a table on stderr.

    .venv/bin/python benchmarks/peers/growth.py [--rows topics,ids] [--rounds 10] [--calls 2000]
                                                [--write docs/performance.md]
    .venv/bin/python benchmarks/peers/growth.py --read figures.json --write docs/performance.md

Every broker is `tidewheel serve` in a separate process, called over gRPC by the load of `rocketmq.py`, with
`--flush sync` by default. The figures are the processor time of its process for each message of the kinds in
`growth_load`; brokers of a row are measured in turns, while the others are stopped.

    topics        1, 250, 2,000 and 10,000 topics of 8 queues (--sizes), 16 messages in each
    ids           after 10 minutes of sends (--minutes), compared with a new broker
    restart       the first 30 s after kill -9 under load, with the most topics, compared with a running one
    groups        1,000 groups of a topic (--groups), compared with one
    connections   10,000 idle connections (--connections), compared with none
    messages      a store of 5,000,000 messages (--messages), with its starts, compared with a small one

On two idle cores it takes about 40 minutes: 6, 13, 4, 3, 4 and 9. It needs Linux and 20 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[2]))

from growth_rows import ROWS, measure
from growth_table import PLACE, table
from peers_command import check_disk, end_by_signals, names_of, reported, tell
from peers_http2 import LoadFailed
from peers_machine import commit, machine_facts
from peers_servers import CannotRun

DISK_FREE_BYTES: Final = 20 << 30
FILES_SPARE: Final = 5_000
"""Open files in addition to one per connection: the broker's store, and the load."""


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all rows, with the machine, the commit and the options; raise `CannotRun`."""
    end_by_signals()
    if "connections" in given.rows:
        allow_files(given.connections)
    before, figures, failures = os.getloadavg()[0], list[Any](), list[dict[str, str]]()
    for name in given.rows:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="tidewheel-growth-") as folder:
            check_disk(Path(folder), DISK_FREE_BYTES)
            try:
                figures.append(await measure(name, Path(folder), given))
            except (LoadFailed, TimeoutError, OSError) as error:
                why = str(error) or f"it took too long ({type(error).__name__})"
                tell(f"FAILED: {name}: {why}")
                failures.append({"row": name, "why": why})
    return {
        "machine": machine_facts(before),
        "commit": commit(),
        "options": {name: value for name, value in vars(given).items() if not isinstance(value, Path)},
        "figures": figures,
        "failures": failures,
    }


def allow_files(connections: int) -> None:
    """Raise the limit of open files of this process and its children; raise `CannotRun` if it is too low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < connections + FILES_SPARE:
        raise CannotRun(
            f"{connections:,} connections need {connections + FILES_SPARE:,} open files, and a process may"
            f" have {most:,}. Raise the limit (ulimit -Hn), or use --connections."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def sizes_of(text: str) -> list[int]:
    """Parse a comma-separated list of numbers of topics."""
    return [int(one) for one in text.split(",")]


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=names_of(list(ROWS)), default=list(ROWS), help="with commas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=2_000, help="messages of a sample")
    parser.add_argument("--sizes", type=sizes_of, default=[1, 250, 2_000, 10_000], help="topics, with commas")
    parser.add_argument("--minutes", type=float, default=10.0, help="of fresh ids")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--folder", type=Path, help="where stores are made; else a temporary folder")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into its place in this page"
    )
    parser.add_argument("--read", type=Path, metavar="JSON", help="measure nothing: make the table of these")
    return parser.parse_args()


def main() -> int:
    """Measure or read figures, and write the table; return the exit code."""
    return reported(arguments(), measured, table, PLACE)


if __name__ == "__main__":
    sys.exit(main())
