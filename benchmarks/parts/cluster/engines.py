"""Where a store is written to: a broker alone, or two nodes over an engine that runs on this machine.

    alone          a broker, its own disk synced for every answer
    postgresql     two nodes over a PostgreSQL without a standby
    postgresql2    over a PostgreSQL whose commit waits for any one of two standbys
    kafka3         over three servers of Kafka, of which two must have a record, synced

All engines sync, as a cluster's should, and all on one disk: with machines of their own they would not wait
for each other's syncs, but for the network.
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
    """What serves: addresses and process of the leader, and of the node that follows, if there is one."""

    leader: dict[str, Any]
    follower: dict[str, Any] | None


@contextmanager
def shared_log(engine: str) -> Iterator[str]:
    """Run an engine; yield the URL of a cluster in it that holds nothing yet."""
    with empty_log(engine) as url:
        yield created(url)


@contextmanager
def empty_log(engine: str) -> Iterator[str]:
    """Run an engine; yield the URL of a shared log in which no cluster has begun."""
    if engine == "kafka3":
        with running_kafka(3) as kafka:
            yield kafka.url("tidewheel")
        return
    with running_servers(standbys={"postgresql": 0, "postgresql2": 2}[engine], options=()) as servers:
        yield servers.url


def created(url: str) -> str:
    """Make a shared log; return its URL."""
    command = [sys.executable, "-m", "services.cli.main", "cluster", "create", url]
    subprocess.run(command, check=True, capture_output=True)
    return url


@contextmanager
def served(arm: str, folder: Path) -> Iterator[Served]:
    """Serve on stores below `folder`, alone or over an engine."""
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
    """Return what a node says that it does."""
    with urlopen(f"http://{node['http']}/api/cluster", timeout=5) as answer:
        return str(json.load(answer)["role"])
