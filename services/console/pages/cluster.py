"""`/cluster`: the nodes of a cluster with their roles, epoch, lag and copies, and operations to move the
leader or remove a node.

The rows are the same as in `tidewheel cluster status` and `nodes` (`services.status.cluster`). Each node
reports its own state. Only the leader knows the lag of the followers.
"""

from __future__ import annotations

from typing import Final

from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from services.status.asking import cluster_of
from services.status.cluster import NODES, facts, node_rows
from services.status.judgement import LEADING
from tidewheel.errors import ClientMistake

WRONG: Final = ("trouble",)
"""Rows about errors, in addition to rows in capitals."""


def read(broker: Api, asked: Asked) -> Model:
    """Return the state of the contacted node. `cluster` is None for a single broker."""
    found = cluster_of(broker)
    if found is None:
        return {"address": broker.address, "cluster": None}
    rows = [
        {"name": name, "said": said, "is_wrong": name.isupper() or name in WRONG}
        for name, said in facts(found)
    ]
    leader = found["leader"]
    return {
        "address": broker.address,
        "cluster": found,
        "rows": rows,
        "columns": list(NODES),
        "nodes": [list(row) for row in node_rows(found)],
        "others": sorted({*found["nodes"], *found["copies"]} - {leader["node"] if leader else ""}),
        "elsewhere": leader["http"] if leader and found["role"] != LEADING else "",
    }


def move(broker: Api, asked: Asked) -> Done:
    """Make another node the leader."""
    leader = broker.post("cluster", "move", body={"node": asked.get("node")})["leader"]
    return Done(f"Node {leader['node']} leads, at {leader['listen']}.", PATH)


def forget(broker: Api, asked: Asked) -> Done:
    """Remove a node after its name was confirmed, so that the shared log is trimmed without it."""
    node = asked.required("node", "The node")
    if asked.required("typed", "The node's name, typed once more,") != node:
        raise ClientMistake(f"Another name was typed than {node}: it is not forgotten.")
    broker.post("cluster", "forget", body={"node": node})
    return Done(f"Node {node} is forgotten: the shared log is trimmed without it.", PATH)


def set_version(broker: Api, asked: Asked) -> Done:
    """Finalize the newest version that all nodes support."""
    finalized = broker.post("cluster", "set-version", body={})["finalized_version"]
    return Done(f"Version {finalized} is finalized.", PATH)


PATH: Final = "/cluster"
PAGE: Final = Page(
    PATH,
    "Cluster",
    "cluster.html",
    read,
    entry="Cluster",
    acts={"move": move, "forget": forget, "set-version": set_version},
)
