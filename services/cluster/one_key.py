"""All nodes of a cluster share one key of users' secrets: a leader opens secrets that earlier leaders sealed.

An EPOCH has the id of its writer's key (`services.auth.vault.id_of`), which reveals nothing of the key
itself; the id of no key is "". A node whose key differs from that of the last leader halts before it stands.

To change its key, or to get its first one, a cluster is stopped, and the last leader is started first: it may
differ from its own last EPOCH.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.errors import OtherKey


def check_key(node: str, key: str, epoch: int, leads: Mapping[str, Any]) -> None:
    """Raise `OtherKey` if the key of `node` differs from that of the last leader; `leads` is its EPOCH."""
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
