"""All nodes of a cluster have one key of users' secrets: what a leader seals, the next one must open.

An EPOCH tells the id of its writer's key (`services.auth.vault.id_of`), which says nothing of the key itself;
the id of no key is "". A node with another one than who led last halts, before it stands.

A cluster changes its key, or gets its first, when all nodes were stopped and who led last comes first: that
one may differ from itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.errors import OtherKey


def check_key(node: str, key: str, epoch: int, leads: Mapping[str, Any]) -> None:
    """Raise `OtherKey` if `node` has another key than who led last, as the EPOCH of that one `leads` says."""
    leader, leaders_key = leads.get("node", node), leads.get("key", "")
    if leader == node or leaders_key == key:
        return
    told = f"node {leader}, which leads epoch {epoch}"
    if not key:
        said = f"N{told[1:]}, has an --auth-key, and this node has none: give it the same file."
    elif not leaders_key:
        said = f"This node has an --auth-key, and {told}, has none: take it away here."
    else:
        said = f"This node has another --auth-key than {told}: give it the same file."
    raise OtherKey(f"{said} To change the key of all, stop all nodes and start {leader} first.")
