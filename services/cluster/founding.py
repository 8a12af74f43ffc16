"""A cluster that begins with a store: one that was a broker's alone, or what is left of another cluster.

    store --its state, at its end--> GENESIS with that end --the shared log has it--> the store is a node's

The GENESIS says where the history goes on. What lies before that is in this store only, so every other node
copies it first (`transfer`), and the shared log is trimmed no earlier than by the usual rules.

    create --from    a store that was a broker's alone; all that it holds
    restore          a node's store; all up to its newest checkpoint. What the cluster accepted behind that
                     is lost, and said so: the operator must name the offset (`LossNotAccepted`)

Rules
1. The store is written before the log is, and named last: whoever is killed on the way has a broker's store,
   and a shared log without a record, which is no cluster.
2. The epoch goes on from the store's: handles of an older one stay what they were.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from commitlog import layout, snapshot, store_format
from commitlog.errors import NotAStore
from commitlog.lock import StoreLock
from commitlog.real_disk import RealDisk
from services.broker.broker import SHARED, Broker
from services.broker.settings import BrokerSettings
from services.cluster.errors import LossNotAccepted
from services.cluster.replica import Replica, SharedPart, go_back_to_checkpoint
from services.process.private_files import GROUP_READS, write_whole
from sharedlog.engine import Head
from sharedlog.engines import NOWHERE, SharedLog
from sharedlog.fold import Fold, Position
from sharedlog.record import CHAIN_AT_GENESIS, ID_BYTES, NOBODY, Kind, SharedRecord, body_of, encode
from sharedlog.versions import SUPPORTED
from tidewheel.errors import ConfigurationError


class Founded(NamedTuple):
    """The cluster's id, and the CommitLog offset from which on the shared log has it."""

    cluster: bytes
    end: int


def found_with_store(engine: SharedLog, root: Path, node: str, now_ms: int) -> Founded:
    """Begin a cluster with a store that was a broker's alone, which becomes that of `node`.

    Raise `ClusterExists`, `Unknown`, a `StoreError`, or `ConfigurationError` for a store of a virtual clock.
    """
    with locked(root, is_node=False) as disk:
        return _found(engine, root, disk, node, now_ms, None)


def restore_from(engine: SharedLog, root: Path, node: str, now_ms: int, accepted_loss: int | None) -> Founded:
    """Begin a cluster anew with the newest checkpoint of a node's store, which becomes that of `node`.

    Raise `LossNotAccepted` unless `accepted_loss` is the offset behind which all is lost.
    """
    if not (root / layout.CLUSTER).exists():
        raise NotAStore(f"{root} is no store of a cluster's node: tidewheel cluster create --from takes it.")
    with locked(root, is_node=True) as disk:
        end = newest_checkpoint(disk)
        if accepted_loss != end:
            raise LossNotAccepted(
                f"The newest checkpoint of {root} ends at byte {end} of the log; what the cluster has "
                f"accepted behind that is lost. If no other node has more: --accept-loss-after {end}."
            )
        return _found(engine, root, disk, node, now_ms, go_back_to_checkpoint(disk))


@contextmanager
def locked(root: Path, *, is_node: bool) -> Iterator[RealDisk]:
    """Give the disk of a store that nobody else has open."""
    if not (root / layout.FORMAT).exists():
        raise NotAStore(f"{root} is no store of a broker. Give its folder.")
    lock = StoreLock(root, is_node=is_node)
    lock.acquire()
    disk = RealDisk(root)
    try:
        yield disk
    finally:
        disk.close()
        lock.release()


def newest_checkpoint(disk: RealDisk) -> int:
    """Return the offset of the newest checkpoint that a node may go back to; 0 if there is none."""
    start = snapshot.newest(disk)
    return start.offset if start is not None and SHARED in start.parts else 0


def _found(engine: SharedLog, root: Path, disk: RealDisk, node: str, now_ms: int, end: int | None) -> Founded:
    if disk.size(layout.CLOCK) >= 0:
        raise ConfigurationError(f"{root} has a virtual clock: nodes of a cluster share real time.")
    cluster = secrets.token_bytes(ID_BYTES)
    segment_bytes = store_format.open_format(disk, 0).segment_bytes
    shared = SharedPart(Fold(cluster))
    core = Broker.recover(disk, BrokerSettings(segment_bytes=segment_bytes), now_ms, end, shared)
    replica = Replica(disk, core, shared)
    replica.require_sound(has_read_all=True)
    epoch, position = core.epoch.number, Position(core.end_offset, CHAIN_AT_GENESIS)
    # What is left of a cluster goes on at its version: nodes of it may not have been upgraded.
    finalized = SUPPORTED if end is None else shared.fold.finalized
    facts: dict[str, Any] = {
        "segment_bytes": segment_bytes,
        "begins_at": position.end,
        "finalized": finalized,
    }
    genesis = encode(
        SharedRecord(cluster, Kind.GENESIS, epoch, NOBODY, position.end, CHAIN_AT_GENESIS, body_of(facts))
    )
    shared.fold = Fold(cluster)
    shared.fold.take(0, genesis)
    engine.found(NOWHERE)
    replica.checkpoint(now_ms)
    engine.append_if(NOWHERE, [genesis], Head(epoch, NOBODY, position))
    write_whole(
        root / layout.CLUSTER, json.dumps({"cluster": cluster.hex(), "node": node}) + "\n", GROUP_READS
    )
    return Founded(cluster, position.end)
