"""Creates a cluster from the store of a standalone broker, or restores a lost cluster from a node's store.

    end of the store's log  --> GENESIS record in the shared log
    store                   --> store of the first node

The GENESIS record contains the CommitLog offset at which the shared log continues the log of the store. Only
the store of the first node contains the data before this offset. All other nodes must therefore copy that
store (`copies.transfer`). The new shared log is trimmed as usual.

The command `create --from` uses the whole store of a standalone broker. The command `restore` uses the store
of a node (`RemainingData`). The restored cluster contains all valid records up to the accepted end in the
`evidence` file. If that file is damaged or missing, the restored cluster contains all valid records in the
store. Damaged records and all records that were accepted after the end of the restored data are lost. To
confirm the loss, the operator specifies the offset and the number of damaged bytes from the error message
(`LossNotAccepted`). The damaged bytes stay on disk (`holes`), and valid bytes after the offset are set aside
(`tail`).

Rules
1. The store is written before the shared log, and the node name is written after the shared log. If the
   process is killed before the node name is written, the store remains usable as the store of a standalone
   broker. An empty shared log is not considered a cluster.
2. The first epoch of the cluster is at least the epoch in the store, so that receipt handles stay
   unambiguous.
3. A pending copy from another node (`copies.transfer`) replaces the store if its installation has begun, or
   if the copy is at least as long as the store. A shorter copy is deleted. A pending `cluster refetch` is
   cancelled, because no copy may replace a restored store.

Cost: `restore` reads the whole log. Limitation: if the `evidence` file is damaged or missing, a restore may
include records that the cluster never accepted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from commitlog import layout, store_format
from commitlog.disk.disk import Disk
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore
from commitlog.facts.facts import LogCut, facts_of
from commitlog.lock import StoreLock
from commitlog.log.keep import KeepFiles
from commitlog.log.recovery import Damage, LogScan
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.cluster import holes
from services.cluster.copies import transfer
from services.cluster.errors import LossNotAccepted
from services.cluster.evidence_file import EvidenceDamaged, EvidenceFile
from services.cluster.evidence_file import read as read_evidence
from services.cluster.replica import Replica, SharedPart, newest_checkpoint
from services.cluster.tail import Tail
from services.process.private_files import GROUP_READS, write_whole
from sharedlog.engine import Head
from sharedlog.engines import EMPTY_HEAD, SharedLog, read_genesis
from sharedlog.errors import ClusterExists, NoCluster
from sharedlog.fold import Fold, Position
from sharedlog.record import CHAIN_AT_GENESIS, ID_BYTES, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import SUPPORTED
from tidewheel.errors import ConfigurationError, TidewheelError

_PLACES_SAID: Final = 20
"""Maximum number of damaged ranges that an error message lists."""


class FoundedCluster(NamedTuple):
    """The id of a new cluster, and the CommitLog offset at which its shared log starts."""

    cluster: bytes
    end: int


class RemainingData(NamedTuple):
    """The part of a cluster's log that remains in the store of a node.

    All positions are CommitLog offsets. A restore includes all valid records up to `end`. A restore excludes
    the ranges in `damaged` and the valid bytes from `end` to `beyond_end`. The newest checkpoint is at the
    offset `checkpoint`. The cluster is known to have accepted the log up to `accepted_end`. If there is no
    usable evidence, `unproven` states the reason. In this case, the cluster may have accepted records after
    `accepted_end`, and a restore includes all valid records.
    """

    checkpoint: int
    end: int
    accepted_end: int
    beyond_end: int
    epoch: int
    damaged: tuple[Damage, ...] = ()
    unproven: str = ""
    keep_bytes: int = 0
    """Number of damaged bytes in the keep files. Keep files contain half messages from deleted segments."""

    @property
    def damaged_bytes(self) -> int:
        """Number of damaged bytes in keep files and in the log up to `end`."""
        return self.keep_bytes + sum(one.end_offset - one.first_offset for one in self.damaged)

    @property
    def missing_bytes(self) -> int:
        """Number of accepted bytes that are missing or damaged."""
        return self.damaged_bytes + max(0, self.accepted_end - self.end)

    @property
    def unproven_bytes(self) -> int:
        """Number of restored bytes that the cluster may not have accepted."""
        return max(0, self.end - self.accepted_end) if self.unproven else 0

    def facts(self) -> dict[str, Any]:
        """Return the statistics of a restore as a JSON-serializable dictionary."""
        return {
            "end_offset": self.end,
            "checkpoint_offset": self.checkpoint,
            "behind_checkpoint_bytes": self.end - self.checkpoint,
            "accepted_end_offset": self.accepted_end,
            "unproven_bytes": self.unproven_bytes,
            "missing_bytes": self.missing_bytes,
            "damaged_bytes": self.damaged_bytes,
            "damaged": [[one.first_offset, one.end_offset] for one in self.damaged],
            "set_aside_bytes": self.beyond_end - self.end,
        }

    def description(self) -> str:
        """Describe the remaining and missing data for an error message."""
        missing = (
            f"{self.missing_bytes} bytes that this node has seen accepted are missing"
            if self.missing_bytes
            else "nothing is missing of what this node has seen accepted"
        )
        parts = [f"its newest checkpoint, and {self.end - self.checkpoint} bytes behind it", missing]
        if self.damaged:
            places = [f"{one.first_offset} to {one.end_offset}" for one in self.damaged[:_PLACES_SAID]]
            more = len(self.damaged) - len(places)
            parts.append(
                f"damaged are bytes {', '.join(places)}{f' and {more} other places' * bool(more)}, "
                f"{self.damaged_bytes - self.keep_bytes} in all, and the records behind them are taken"
            )
        if self.keep_bytes:
            parts.append(f"damaged are {self.keep_bytes} bytes of the files {layout.KEEP}/, with halves")
        if self.accepted_end > self.end:
            parts.append(f"gone are the last ones, {self.end} to {self.accepted_end}")
        if self.unproven:
            parts.append(
                f"{self.unproven}, so nothing tells whether the {self.unproven_bytes} bytes behind byte "
                f"{min(self.end, self.accepted_end)} were accepted, nor whether more was"
                if self.unproven_bytes
                else f"{self.unproven}, so nothing tells whether more was accepted"
            )
        return f"the log up to byte {self.end}: {'; '.join(parts)}"

    def loss_acceptance_options(self) -> str:
        """Return the command-line options that confirm the loss."""
        of_damage = f" --accept-damaged {self.damaged_bytes}" if self.damaged_bytes else ""
        return f"--accept-loss-after {self.end}{of_damage}"


class RestoredCluster(NamedTuple):
    """The id of a restored cluster, the start offset of its log, the restored data, and the node name."""

    cluster: bytes
    end: int
    left: RemainingData
    node: str


def create_cluster_from_store(engine: SharedLog, root: Path, node: str, now_ms: int) -> FoundedCluster:
    """Create a cluster from the store of a standalone broker, which becomes the store of the node `node`.

    Raise `ClusterExists` if the shared log already contains a cluster, or `EngineUnavailable` if the engine
    does not respond. Raise a `StoreError` if the store cannot be used, or `ConfigurationError` if the store
    uses a virtual clock.
    """
    with lock_store(root, is_node=False) as disk:
        return FoundedCluster(*_found(engine, root, disk, node, now_ms, None))


def restore_cluster(
    engine: SharedLog,
    root: Path,
    node: str | None,
    now_ms: int,
    accepted_loss: int | None,
    accepted_damage: int | None = None,
) -> RestoredCluster:
    """Create a cluster from the data that remains in a node's store.

    The store is assigned to the node `node`, or by default to the node named in the store. Raise
    `LossNotAccepted` unless `accepted_loss` is the offset after which all records are lost and
    `accepted_damage` is the number of damaged bytes before that offset. Raise a `StoreError` if the store
    cannot be used, or `ClusterExists` if the shared log already contains a cluster.
    """
    if not root.exists():
        raise NotAStore(f"{root} does not exist. Give the folder of a stopped node's store.")
    if not (root / layout.CLUSTER).exists():
        raise NotAStore(
            f"{root} is no store of a cluster's node. That of a broker alone: tidewheel cluster create --from"
        )
    node = node or name_in(root)
    with lock_store(root, is_node=True) as disk:
        _finish_copy(disk)
        left = remaining_data(disk)
        if (accepted_loss, accepted_damage or 0) != (left.end, left.damaged_bytes):
            raise LossNotAccepted(
                f"{_differing_numbers(left, accepted_loss, accepted_damage)}{root} has {left.description()}. "
                f"What the cluster has accepted after byte {left.end} is lost.{_founding_obstacle(engine)} "
                f"If no other node has more: {left.loss_acceptance_options()}.",
                left.facts(),
            )
        _require_no_cluster(engine)  # check before modifying the store
        cluster, end = _found(engine, root, disk, node, now_ms, left)
        return RestoredCluster(cluster, end, left, node)


def name_in(root: Path) -> str:
    """Return the node name in a store. Raise `ConfigurationError` if the store has no node name."""
    path = root / layout.CLUSTER
    try:
        return str(json.loads(path.read_text())["node"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} does not say which node's store this is: give --node.") from error


def _differing_numbers(left: RemainingData, accepted_loss: int | None, accepted_damage: int | None) -> str:
    """Return a message about each confirmed number that does not match the store, or "" if all match."""
    given = []
    if accepted_loss not in (None, left.end):
        given.append(f"--accept-loss-after is {accepted_loss}, and the log ends at {left.end}")
    if accepted_damage not in (None, left.damaged_bytes):
        given.append(f"--accept-damaged is {accepted_damage}, and {left.damaged_bytes} bytes are damaged")
    return f"Nothing was changed: {'; '.join(given)}. " if given else ""


def _founding_obstacle(engine: SharedLog) -> str:
    """Return the reason why no cluster can be created at the URL, or "" if a cluster can be created."""
    try:
        _require_no_cluster(engine)
    except TidewheelError as error:
        return f" No cluster can begin at the URL yet: {error.detail}"
    return ""


def _require_no_cluster(engine: SharedLog) -> None:
    """Raise `ClusterExists` if the shared log contains a cluster. Propagate engine errors."""
    try:
        read_genesis(engine)
    except NoCluster:
        return
    raise ClusterExists("A restore begins a cluster anew: give a URL that holds none.")


@contextmanager
def lock_store(root: Path, *, is_node: bool) -> Iterator[RealDisk]:
    """Lock a store for the duration of the block, and yield its disk.

    Raise `NotAStore` if `root` is not a store.
    """
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


def remaining_data(disk: Disk) -> RemainingData:
    """Return the part of the log in a node's store that is valid and known to be accepted.

    If there is no usable evidence, return all valid records. This function reads the whole log. Raise a
    `StoreError` if the store cannot be used, or OSError if the disk fails.
    """
    checkpoint, published = newest_checkpoint(disk), layout.published(disk)
    seen, epoch, unproven = max(published.offset, published.accepted_offset), published.epoch, ""
    try:
        evidence = read_evidence(disk)
    except EvidenceDamaged:
        evidence, unproven = None, f"the file {layout.EVIDENCE} is spoiled"
    if evidence is not None:
        seen, epoch = evidence.end, evidence.epoch
    if evidence is None and not unproven:
        unproven = f"the file {layout.EVIDENCE} is missing"
    accepted_end = max(checkpoint, seen)
    segment_bytes = store_format.open_format(disk, 0).segment_bytes
    beyond_end, damaged = _scan_valid_records(disk, segment_bytes, max(accepted_end, _files_end(disk)))
    end = beyond_end
    if not unproven and beyond_end > accepted_end:
        end, damaged = _scan_valid_records(disk, segment_bytes, accepted_end)
    end, keep_bytes = max(end, checkpoint), KeepFiles(disk).damaged_bytes
    damaged = _missing_first_bytes(disk, segment_bytes, checkpoint, end) + damaged
    kept = [Damage(one.first_offset, min(one.end_offset, end)) for one in damaged if one.first_offset < end]
    kept = holes.join_ranges(kept)
    return RemainingData(
        checkpoint, end, accepted_end, max(end, beyond_end), epoch, tuple(kept), unproven, keep_bytes
    )


def _finish_copy(disk: Disk) -> None:
    """Install a pending copy that is partly installed or at least as long as the store."""
    copy_end = transfer.pending_copy_end(disk)
    if transfer.is_moving(disk) or 0 <= copy_end >= remaining_data(disk).end:
        transfer.install_copy(disk)


def recover_remaining_data(disk: Disk, left: RemainingData, shared: SharedPart, now_ms: int) -> Broker:
    """Recover a store from the data that remains in it.

    The log is truncated after this data, and the damaged ranges are recorded in the `holes` file. Raise a
    `StoreError` if the store cannot be used, or OSError if the disk fails.
    """
    settings = BrokerSettings(segment_bytes=store_format.open_format(disk, 0).segment_bytes)
    Tail(disk, settings.segment_bytes, left.checkpoint).truncate_at(left.end, left.beyond_end)
    holes.fill_missing_segments(disk, settings.segment_bytes, left.damaged)
    holes.write(disk, holes.Holes(left.damaged, left.keep_bytes))
    layout.republish_durable(disk, left.end, may_go_back=True)
    return Broker.recover(disk, settings, now_ms, left.end, shared)


def _scan_valid_records(disk: Disk, segment_bytes: int, until: int) -> tuple[int, list[Damage]]:
    """Return the end of the last valid record before `until`, and the damaged ranges before `until`."""
    scan = LogScan(disk, segment_bytes, 0, until, may_lack_segments=True)
    scan.check()
    end, damaged = scan.end_offset, holes.join_ranges(scan.damaged)
    return damaged[-1].first_offset if damaged and damaged[-1].end_offset >= end else end, damaged


def _missing_first_bytes(disk: Disk, segment_bytes: int, checkpoint: int, end: int) -> list[Damage]:
    """Return the bytes missing at the start of the log as damage, except those that retention deleted.

    The range that retention has deleted is known from the checkpoint and from later retention records. If a
    retention record was lost in a power failure after its segments had been deleted, the deleted bytes are
    reported as damage.
    """
    start, first = snapshot.newest(disk), min(layout.segment_offsets(disk), default=end)
    deleted_to = 0
    if start is not None and start.offset == checkpoint:
        deleted_to = start.parts["store"]["may_begin_at"]
    for found in LogScan(disk, segment_bytes, max(first, checkpoint), may_lack_segments=True):
        cuts = [fact.cut_offset for fact in facts_of(found.record) if isinstance(fact, LogCut)]
        deleted_to = max([deleted_to, *cuts])
    return [Damage(deleted_to, first)] if deleted_to < first else []


def _files_end(disk: Disk) -> int:
    """Return the end offset of the last log file, or 0 if there is none."""
    firsts = layout.segment_offsets(disk)
    return firsts[-1] + disk.size(layout.segment_path(firsts[-1])) if firsts else 0


def _found(
    engine: SharedLog, root: Path, disk: RealDisk, node: str, now_ms: int, left: RemainingData | None
) -> tuple[bytes, int]:
    if disk.size(layout.CLOCK) >= 0:
        raise ConfigurationError(f"{root} has a virtual clock: nodes of a cluster share real time.")
    cluster = secrets.token_bytes(ID_BYTES)
    segment_bytes = store_format.open_format(disk, 0).segment_bytes
    shared = SharedPart(Fold(cluster))
    if left is None:
        core = Broker.recover(disk, BrokerSettings(segment_bytes=segment_bytes), now_ms, None, shared)
    else:
        core = recover_remaining_data(disk, left, shared, now_ms)
    replica = Replica(disk, core, shared, EvidenceFile(disk, None))
    replica.require_sound(has_read_all=True)
    transfer.delete_pending_copy(disk)
    disk.delete(layout.REFETCH)
    position = Position(core.end_offset, CHAIN_AT_GENESIS)
    epoch = max(core.epoch.number, 0 if left is None else left.epoch)
    # A restored cluster keeps its finalized version, because some nodes may not have been upgraded.
    finalized = SUPPORTED if left is None else max(shared.fold.finalized, core.store.version)
    facts: dict[str, Any] = {
        "segment_bytes": segment_bytes,
        "begins_at": position.end,
        "finalized": finalized,
    }
    genesis = encode(
        SharedRecord(
            cluster, Kind.GENESIS, epoch, NOBODY, position.end, CHAIN_AT_GENESIS, encode_facts(facts)
        )
    )
    shared.fold = Fold(cluster)
    shared.fold.apply_record(0, genesis)
    engine.create_log(EMPTY_HEAD)
    replica.checkpoint(now_ms)
    engine.append_if(EMPTY_HEAD, [genesis], Head(epoch, NOBODY, position))
    write_whole(
        root / layout.CLUSTER, json.dumps({"cluster": cluster.hex(), "node": node}) + "\n", GROUP_READS
    )
    disk.delete(layout.EVIDENCE)  # last, because the lost cluster's log may reappear truncated
    return cluster, position.end
