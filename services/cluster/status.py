"""The status of a node, including its role, the leader, the lag of each follower, and all copies."""

from __future__ import annotations

from typing import Any

from services.cluster.copies.checkpoints import holdings_view
from services.cluster.election.table import Role
from services.cluster.node import ClusterNode, monotonic_ms


def status_of(node: ClusterNode) -> dict[str, Any]:
    """Return the status of a cluster node as a JSON-serializable dictionary."""
    election, replica, leader = node.election, node.actions.replica, node.known_leader
    fold, seen = None if replica is None else replica.fold, election.answers.seen
    leads = node.role is Role.LEADING
    return {
        "node": node.me.node,
        "role": node.role.value,
        "epoch": node.epoch,
        "leader": None if leader is None else leader.status_fields(),
        "end_offset": fold.end if leads and fold is not None else seen.end,
        "next_record": seen.next_record,
        "read_ms_ago": monotonic_ms() - node.read_ms if node.read_ms else None,
        "takeovers": election.takeovers,
        "nodes": sorted(election.leadership.names),
        "beyond_checkpoint_bytes": None if replica is None else replica.beyond_checkpoint_bytes,
        "finalized_version": None if fold is None else fold.finalized,
        "supported_version": node.me.supports,
        "took_over": None if node.last_takeover is None else node.last_takeover._asdict(),
        "copies": {} if fold is None else holdings_view(fold.holdings),
        "followers": node.leader_term.lags() if leads and node.leader_term is not None else {},
        "trimmed_below": node.actions.copying.trimmed_below,
        "copying": election.copying,
        "halted": election.halted,
        "reopened": election.reopened,
        "unfit": node.health.unfit_reason(),
        "foreign_lines": seen.foreign_lines,
        "repeated_records": seen.repeated_records,
        "broken_records": node.broken_records,
    } | node.health.lag_and_skew.view(leads=leads)
