"""Arms of the cluster benchmark: a single broker, or two nodes over an engine on this machine.

    alone          a broker, its own disk synced for every answer
    postgresql     two nodes over a PostgreSQL without a standby
    postgresql2    over a PostgreSQL whose commit waits for any one of two standbys
    kafka3         over three Kafka brokers, of which two must have a record, synced

All engines sync, as in production, and all on one disk: on separate machines they would wait for the network
instead of each other's syncs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[3]))

from parts.serving import serving
from tests.kafka_cluster import running_kafka
from tests.postgresql import running_servers

ALONE: Final = "alone"
ENGINES: Final = ("postgresql", "postgresql2", "kafka3")
LEAD_SECONDS: Final = 30


class Served(NamedTuple):
    """Addresses and process of the leader, and of the follower if there is one."""

    leader: dict[str, Any]
    follower: dict[str, Any] | None


@contextmanager
def shared_log(engine: str) -> Iterator[str]:
    """Run an engine; yield the URL of a new, empty cluster in it."""
    with empty_log(engine) as url:
        yield created(url)


@contextmanager
def empty_log(engine: str) -> Iterator[str]:
    """Run an engine; yield the URL of a shared log without a cluster."""
    if engine == "kafka3":
        with running_kafka(3) as kafka:
            yield kafka.url("tidewheel")
        return
    with running_servers(standbys={"postgresql": 0, "postgresql2": 2}[engine], options=()) as servers:
        yield servers.url


def created(url: str) -> str:
    """Create a cluster in a shared log; return the URL."""
    command = [sys.executable, "-m", "services.cli.main", "cluster", "create", url]
    subprocess.run(command, check=True, capture_output=True)
    return url


@contextmanager
def served(arm: str, folder: Path) -> Iterator[Served]:
    """Serve on stores below `folder`, as a single broker or as two nodes over an engine."""
    if arm == ALONE:
        with serving(folder / ALONE) as broker:
            yield Served(broker, None)
        return
    with ExitStack() as stack:
        url = stack.enter_context(shared_log(arm))
        stores = {name: folder / f"{arm}-{name}" for name in "ab"}
        nodes = [
            stack.enter_context(serving(store, "--cluster", url, "--node", name))
            for name, store in stores.items()
        ]
        ends = time.monotonic() + LEAD_SECONDS
        while not (leading := [node for node in nodes if role_of(node) == "leading"]):
            assert time.monotonic() < ends, "no node leads"
            time.sleep(0.1)
        [follower] = [node for node in nodes if node is not leading[0]]
        yield Served(leading[0], follower)


def role_of(node: dict[str, Any]) -> str:
    """Return a node's role as reported by the node."""
    with urlopen(f"http://{node['http']}/api/cluster", timeout=5) as answer:
        return str(json.load(answer)["role"])
