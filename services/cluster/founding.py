"""A cluster that begins with a store: one that was a broker's alone, or what is left of another cluster.

    store --its state, at its end--> GENESIS with that end --the shared log has it--> the store is a node's

The GENESIS says where the history goes on. What lies before that is in this store only, so every other node
copies it first (`transfer`), and the shared log is trimmed no earlier than by the usual rules.

    create --from    a store that was a broker's alone; all that it holds
    restore          a node's store; all up to the first damage, or the end of its evidence (`Left`). What
                     the cluster accepted behind that is lost, and the refusal says how much: the operator
                     must name the offset (`LossNotAccepted`). Sound bytes behind it are set aside (`tail`)

Rules
1. The store is written before the log is, and named last: whoever is killed on the way has a broker's store,
   and a shared log without a record, which is no cluster.
2. The epoch goes on from the store's: handles of an older one stay what they were.
3. A copy of another node that was about to take a store's place (`transfer`) takes it where it has begun to,
   or has no less; else it is deleted, as is an order to refetch: what was restored is not replaced.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from commitlog import layout, snapshot, store_format
from commitlog.disk import Disk
from commitlog.errors import NotAStore
from commitlog.lock import StoreLock
from commitlog.real_disk import RealDisk
from commitlog.recovery import LogScan
from services.broker.broker import SHARED, Broker
from services.broker.settings import BrokerSettings
from services.cluster import transfer
from services.cluster.errors import LossNotAccepted
from services.cluster.evidence_file import EvidenceFile
from services.cluster.evidence_file import read as read_evidence
from services.cluster.replica import Replica, SharedPart
from services.cluster.tail import Tail
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


class Left(NamedTuple):
    """What a node's store has left of its cluster's log, as CommitLog offsets.

    All up to `end` is there; up to `accepted_end` the node has seen it accepted. `checkpoint` is its newest.
    `beyond_end` is where the sound records end that lie behind `end`, not known to be accepted.
    """

    checkpoint: int
    end: int
    accepted_end: int
    beyond_end: int
    epoch: int

    @property
    def missing_bytes(self) -> int:
        """How much this node has seen accepted and has no sound bytes of."""
        return self.accepted_end - self.end

    def facts(self) -> dict[str, int]:
        """Return what a restore tells."""
        return {
            "end_offset": self.end,
            "checkpoint_offset": self.checkpoint,
            "behind_checkpoint_bytes": self.end - self.checkpoint,
            "accepted_end_offset": self.accepted_end,
            "missing_bytes": self.missing_bytes,
            "set_aside_bytes": self.beyond_end - self.end,
        }

    def said(self) -> str:
        """Return how much there is, and what is missing."""
        behind = self.end - self.checkpoint
        missing = (
            f"{self.missing_bytes} bytes that this node has seen accepted are missing"
            if self.missing_bytes
            else "nothing is missing of what this node has seen accepted"
        )
        return (
            f"the log up to byte {self.end}: its newest checkpoint, and {behind} bytes behind it; {missing}"
        )


class Restored(NamedTuple):
    """A cluster that was begun anew: its id, where its log begins, and what the store had left."""

    cluster: bytes
    end: int
    left: Left


def found_with_store(engine: SharedLog, root: Path, node: str, now_ms: int) -> Founded:
    """Begin a cluster with a store that was a broker's alone, which becomes that of `node`.

    Raise `ClusterExists`, `Unknown`, a `StoreError`, or `ConfigurationError` for a store of a virtual clock.
    """
    with locked(root, is_node=False) as disk:
        return Founded(*_found(engine, root, disk, node, now_ms, None))


def restore_from(
    engine: SharedLog, root: Path, node: str, now_ms: int, accepted_loss: int | None
) -> Restored:
    """Begin a cluster anew with what a node's store has left, which becomes that of `node`.

    Raise `LossNotAccepted` unless `accepted_loss` is the offset behind which all is lost, or a `StoreError`.
    """
    if not (root / layout.CLUSTER).exists():
        raise NotAStore(f"{root} is no store of a cluster's node: tidewheel cluster create --from takes it.")
    with locked(root, is_node=True) as disk:
        _finish_copy(disk)
        left = what_is_left(disk)
        if accepted_loss != left.end:
            raise LossNotAccepted(
                f"{root} has {left.said()}. What the cluster has accepted behind byte {left.end} is lost. If "
                f"no other node has more: --accept-loss-after {left.end}."
            )
        cluster, end = _found(engine, root, disk, node, now_ms, left)
        return Restored(cluster, end, left)


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


def newest_checkpoint(disk: Disk) -> int:
    """Return the offset of the newest checkpoint that a node may go back to; 0 if there is none."""
    start = snapshot.newest(disk)
    return start.offset if start is not None and SHARED in start.parts else 0


def what_is_left(disk: Disk) -> Left:
    """Return what a node's store has left: from its newest checkpoint on, up to the first unsound byte.

    A store without evidence, of an older program, tells readers how far it was accepted; that counts. Raise
    a `StoreError`, `Halted`, or OSError.
    """
    checkpoint, evidence, published = newest_checkpoint(disk), read_evidence(disk), layout.published(disk)
    seen = max(published.offset, published.accepted_offset) if evidence is None else evidence.end
    accepted_end = max(checkpoint, seen)
    segment_bytes = store_format.open_format(disk, 0).segment_bytes
    end, beyond_end = checkpoint, checkpoint
    if layout.segment_offsets(disk):
        end = _sound_end(disk, segment_bytes, checkpoint, accepted_end)
        beyond_end = _sound_end(disk, segment_bytes, end, None)
    return Left(checkpoint, end, accepted_end, beyond_end, evidence.epoch if evidence is not None else 0)


def _finish_copy(disk: Disk) -> None:
    """Let another node's copy take the store's place where it has begun to, or waits and has no less."""
    copy_end = transfer.waiting_end(disk)
    if transfer.is_moving(disk) or 0 <= copy_end >= what_is_left(disk).end:
        transfer.take_over(disk)


def recover_left(disk: Disk, left: Left, shared: SharedPart, now_ms: int) -> Broker:
    """Recover a store up to what it has left, and cut its log there; raise a `StoreError`, or OSError."""
    settings = BrokerSettings(segment_bytes=store_format.open_format(disk, 0).segment_bytes)
    Tail(disk, settings.segment_bytes, left.checkpoint).end_at(left.end)
    layout.republish_durable(disk, left.end, may_go_back=True)
    return Broker.recover(disk, settings, now_ms, left.end, shared)


def _sound_end(disk: Disk, segment_bytes: int, start: int, stop: int | None) -> int:
    """Return up to where sound records lie back to back from `start` on, but no further than `stop`."""
    scan = LogScan(disk, segment_bytes, start, stop)
    scan.check()
    return scan.damaged[0].first_offset if scan.damaged else scan.end_offset


def _found(
    engine: SharedLog, root: Path, disk: RealDisk, node: str, now_ms: int, left: Left | None
) -> tuple[bytes, int]:
    if disk.size(layout.CLOCK) >= 0:
        raise ConfigurationError(f"{root} has a virtual clock: nodes of a cluster share real time.")
    cluster = secrets.token_bytes(ID_BYTES)
    segment_bytes = store_format.open_format(disk, 0).segment_bytes
    shared = SharedPart(Fold(cluster))
    if left is None:
        core = Broker.recover(disk, BrokerSettings(segment_bytes=segment_bytes), now_ms, None, shared)
    else:
        core = recover_left(disk, left, shared, now_ms)
    replica = Replica(disk, core, shared, EvidenceFile(disk, None))
    replica.require_sound(has_read_all=True)
    transfer.discard(disk)
    disk.delete(layout.REFETCH)
    position = Position(core.end_offset, CHAIN_AT_GENESIS)
    epoch = max(core.epoch.number, 0 if left is None else left.epoch)
    # What is left of a cluster goes on at its version: nodes of it may not have been upgraded.
    finalized = SUPPORTED if left is None else max(shared.fold.finalized, core.store.version)
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
    return cluster, position.end
