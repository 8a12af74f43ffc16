"""`/cluster`: nodes that keep one store: roles, epoch, lag, copies; the leader moved, a node forgotten.

The rows are those of `tidewheel cluster status` and `nodes` (`services.status.cluster`). Each node answers
for itself; how far followers lag is known to the leader only.
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
"""Rows about something wrong, beside those in capitals."""


def read(broker: Api, asked: Asked) -> Model:
    """Return what the node that is asked knows; `cluster` is None for a single broker."""
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
    """Let another node lead."""
    leader = broker.post("cluster", "move", body={"node": asked.get("node")})["leader"]
    return Done(f"Node {leader['node']} leads, at {leader['listen']}.", PATH)


def forget(broker: Api, asked: Asked) -> Done:
    """Keep nothing in the shared log for a node whose name was typed."""
    node = asked.required("node", "The node")
    if asked.required("typed", "The node's name, typed once more,") != node:
        raise ClientMistake(f"Another name was typed than {node}: it is not forgotten.")
    broker.post("cluster", "forget", body={"node": node})
    return Done(f"Node {node} is forgotten: the shared log is trimmed without it.", PATH)


def set_version(broker: Api, asked: Asked) -> Done:
    """Let nodes write what only programs of the newest version that all support can read."""
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
