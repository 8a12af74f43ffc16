"""Two nodes of a cluster, with a PostgreSQL of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.command import tidewheel
from tests.postgresql import running_postgresql
from tidewheel.testing.process import SEGMENT_BYTES, BrokerProcess


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[BrokerProcess]]:
    """Run nodes `a` and `b`."""
    with running_postgresql() as database, ExitStack() as stack:
        url = f"{database.replace('postgresql+psycopg', 'postgresql')}&log=console"
        made = tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES)
        assert made.returncode == 0, made.stderr
        nodes = []
        for name in "ab":
            (folder / name).mkdir()
            nodes.append(BrokerProcess(folder / name, ("--clock", "real", "--cluster", url, "--node", name)))
            stack.callback(nodes[-1].stop)
            nodes[-1].start()
        yield nodes
