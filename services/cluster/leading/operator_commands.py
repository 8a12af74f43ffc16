"""Operator commands that transfer leadership, remove a node, or finalize a version.

The leader writes each command to the shared log in a BEAT record, with `LeaderTerm.hand_over` for a transfer
and with `LeaderTerm.beat` for the other commands. The leader responds to a command after the shared log has
accepted the record. A rejected command has no effect.

For a transfer, the BEAT record contains the name of the successor, which immediately becomes a candidate. For
a removal, the record contains the name of the node to remove (`sharedlog.holdings`). For a finalization, the
record contains a version that all nodes support (`sharedlog.versions`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from services.cluster.election.inputs import BeatRequest, LeadershipTransferRequested
from services.cluster.election.table import Role
from services.cluster.errors import CommandRefused
from services.cluster.identity import Member
from services.cluster.node import ClusterNode
from sharedlog.fold import Fold
from sharedlog.versions import nodes_without_support

MOVE_SECONDS: Final = 10.0
"""Timeout in seconds for the EPOCH record of a new leader or the BEAT record of a command."""

log = structlog.get_logger()


async def transfer_leadership(node: ClusterNode, to: str = "") -> Member:
    """Transfer the leadership to the node `to`, or to any other node if `to` is empty. Return the new leader.

    Raise `CommandRefused` if this node is not the leader, or if no other node takes over. Raise TimeoutError
    if the new leader remains unknown for MOVE_SECONDS.
    """
    _require_leader(node)
    epoch, me = node.epoch, node.me.node
    others = sorted(node_names(node) - {me})
    if to == me:
        raise CommandRefused(f"Node {to} leads already.")
    if not others or (to and to not in others):
        known = f"known are {', '.join(others)}" if others else "no other node is known"
        raise CommandRefused(f"There is no node {to or 'else'} to lead: {known}.")
    node.handle_input(LeadershipTransferRequested(to))
    try:
        async with asyncio.timeout(MOVE_SECONDS):
            await node.wait_for_other_epoch(epoch)
    except TimeoutError:
        raise CommandRefused(
            f"No node leads after {MOVE_SECONDS:.0f} s: see tidewheel cluster status on each."
        ) from None
    _, leader = await node.wait_for_leader(MOVE_SECONDS)
    if leader.node == me:
        raise CommandRefused(f"No other node stood in time: {leader.node} leads again. See the others' logs.")
    return leader


async def forget_node(node: ClusterNode, gone: str) -> None:
    """Remove a permanently stopped node from the cluster.

    Raise `CommandRefused` if this node is not the leader, or if the shared log contains no `Holding` for
    `gone`.
    """
    fold = _require_leader(node)
    if gone == node.me.node:
        raise CommandRefused(f"Node {gone} leads: stop it first.")
    if fold.holdings.of(gone) is None:
        known = ", ".join(fold.holdings.all()) or "none"
        raise CommandRefused(f"Nothing is kept for a node {gone!r}. Nodes that hold a copy: {known}.")
    await _append_facts(node, {"forget": gone})
    node.election.leadership.names.discard(gone)


async def set_version(node: ClusterNode, wanted: int | None = None) -> int:
    """Finalize and return a version.

    By default, finalize the highest version that all nodes support. Raise `CommandRefused` if this node is
    not the leader, if the version is lower than the finalized version, or if a node does not support the
    version.
    """
    fold = _require_leader(node)
    supports = {name: one.supports for name, one in fold.holdings.all().items()}
    supports[node.me.node] = node.me.supports
    version = max(fold.finalized, min(supports.values())) if wanted is None else wanted
    if version < fold.finalized:
        raise CommandRefused(
            f"Version {fold.finalized} is finalized, and there may be records of it: it never goes down."
        )
    if cannot := nodes_without_support(version, supports):
        told = ", ".join(f"{name} supports up to {most}" for name, most in cannot.items())
        raise CommandRefused(
            f"Not all nodes can read records of version {version}: {told}. Upgrade them and try again; of a "
            "node that is gone for good tell: tidewheel cluster forget NODE"
        )
    if version > fold.finalized:
        await _append_facts(node, {"finalize": version})
        log.info("finalized", version=version)
    return version


def node_names(node: ClusterNode) -> set[str]:
    """Return the names of all nodes that are known from the shared log and were not removed."""
    replica = node.actions.replica
    held = set() if replica is None else replica.fold.holdings.all().keys()
    return node.election.leadership.names | held


def _require_leader(node: ClusterNode) -> Fold:
    """Return the leader's `Fold`. Raise `CommandRefused` if this node is not the leader."""
    if node.role is not Role.LEADING or node.leader_term is None:
        raise CommandRefused("This node does not lead. Tell the leader: tidewheel cluster status names it.")
    return node.leader_term.fold


async def _append_facts(node: ClusterNode, facts: dict[str, Any]) -> None:
    """Write a BEAT record that contains `facts` to the shared log.

    Raise `CommandRefused` if the append is not confirmed within MOVE_SECONDS.
    """
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(MOVE_SECONDS):
            node.handle_input(BeatRequest(facts, written))
            await written
    except TimeoutError:
        raise CommandRefused(
            f"The shared log has not confirmed it within {MOVE_SECONDS:.0f} s, so nobody knows whether it is "
            "written. See tidewheel cluster nodes and status, and tell the leader again."
        ) from None
