"""Checks that all nodes have the same key for user secrets, so that any leader can decrypt these secrets.

An EPOCH record contains the id of the leader's key (`services.auth.vault.id_of`). The key cannot be derived
from the id. The key id of a node without a key is "". A node whose key id differs from that of the last
leader halts before becoming a candidate.

To change the key of a cluster, or to add the first key, stop all nodes and start the last leader first. Only
the last leader can start with a new key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.errors import KeyMismatch


def check_key(node: str, key: str, epoch: int, leads: Mapping[str, Any]) -> None:
    """Raise `KeyMismatch` if the key id `key` of this node differs from the key id in `leads`.

    The mapping `leads` contains the fields of the last EPOCH record. The last leader itself may have a new
    key.
    """
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
    raise KeyMismatch(f"{said} To change the key of all, stop all nodes and start {leader} first.")
