"""The replica of the cluster's store on a node. Its core contains the accepted records of the shared log.

When a node opens its replica, the core is recovered from the newest checkpoint. A follower applies each
shared log record to its `Fold`. When a flush is accepted, the follower writes the bytes to the log files and
applies the records to the core. On the leader, the core writes to the shared log, and the sink applies the
records of this node to the replica.

Rules
1. At startup, a node ignores all log bytes after its newest checkpoint, even if the CRCs match. The cluster
   may not have accepted these bytes, and a power failure may have left gaps. The core starts at the
   checkpoint, and the node rereads all later records from the shared log. The bytes after the checkpoint stay
   on disk until the shared log confirms them (`tail`), because they may be the only remaining copy of the
   records. The `evidence` file contains the accepted end of the log and is updated after each accepted flush.
2. A checkpoint contains the state of the `Fold` (`SHARED`) and the state of the core at the same log offset.
   Checkpoints are written between two flushes and contain only accepted records.
3. A follower's core only applies the leader's records. It neither appends records nor performs scheduled
   work. Damage or a full disk on one node does not affect the history of the cluster.
4. The leader determines the offset to which retention trims the log, and every node trims its log when
   applying the retention record. Before trimming, the node writes a checkpoint and copies the open half
   messages to its keep file. After that, no timer depends on the trimmed part of the log. A log segment is
   deleted when both checkpoints of the node cover it.
5. To shorten the next startup, a node writes an additional checkpoint after it has caught up, and another one
   at its first health check as the leader. An additional checkpoint is written only if at least
   EXTRA_CHECKPOINT_BYTES of log follow the previous checkpoint.
6. After a disk error, the replica and its core are unusable, and the node reopens the replica. If the replica
   has lost records that exist only on other machines (`StoreDamaged`), the node fetches a copy from another
   node (`services.cluster.copies`).

Cost: a follower writes and applies each record once, and needs no more memory than the leader. Limitation: at
each startup, a node rereads up to SNAPSHOT_LOG_BYTES_MAX bytes of the shared log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import LogCut, facts_of
from commitlog.records.kinds import RETENTION_TOPIC
from commitlog.records.record import decode
from commitlog.snapshots import snapshot
from services.broker.broker import SHARED, Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart
from services.broker.start_damage import describe_missing_segments
from services.cluster import holes
from services.cluster.copies import transfer
from services.cluster.evidence import CopyProof, FoldProgress, compare_chain
from services.cluster.evidence_file import EvidenceFile
from services.cluster.tail import Tail
from sharedlog.bodies import verify_records
from sharedlog.engine import Engine
from sharedlog.errors import EngineUnavailable, LogTrimmed
from sharedlog.fold import Fold, Outcome, Step
from sharedlog.sink import SharedSink

LEASE_MS_MIN: Final = 30_000
"""Minimum time in milliseconds for which an existing lease stays valid after a takeover.

Consumers cannot acknowledge messages during a takeover. A lease that an earlier takeover has extended is not
extended again (`services.broker.groups.leases`).
"""
EXTRA_CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
"""Minimum number of log bytes between a checkpoint and an additional one. Rereading 8 MiB takes 0.4 s."""
_EVIDENT: Final = frozenset((Outcome.ACCEPTED, Outcome.ALIVE, Outcome.NEW_EPOCH))
"""The outcomes of records after which the evidence is updated."""
_RETENTION: Final = RETENTION_TOPIC.encode()
_IRREPLACEABLE: Final = frozenset(("log", "keep"))
"""The parts of a store that cannot be rebuilt from the other parts.

The names are the part names of `services.broker.spine.values.DamagedPart`.
"""


class SharedPart:
    """The part of a core snapshot that contains the state of the `Fold`."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.is_before_flush = False
        """Whether the core has not yet applied the last accepted flush of the `Fold`."""

    def freeze(self) -> Any:
        """Return the state of the `Fold` as a JSON value."""
        return self.fold.freeze(before_flush=self.is_before_flush)

    def thaw(self, frozen: Any) -> None:
        """Restore the `Fold` from the state in a snapshot."""
        self.fold = Fold.thaw(frozen)


class Replica:
    """The replica of the cluster's store on a node. Use `Replica.open` to open a replica."""

    def __init__(self, disk: Disk, core: Broker, shared: SharedPart, evidence: EvidenceFile) -> None:
        self._disk, self.core, self._shared, self._evidence = disk, core, shared, evidence
        fold, self._synced_end = shared.fold, core.end_offset
        assert fold.cluster is not None, "a copy is of a cluster"
        begins = FoldProgress(fold.end, fold.chain, fold.next_offset, None)
        self._proof = CopyProof(fold.cluster, evidence.written, begins, compare_chain(fold, evidence.written))
        self._tail = Tail(disk, core.segment_bytes, core.end_offset)
        self._holes = holes.read(disk)
        self._of_holes: set[DamagedPart] = set()
        """The reported damage that is inside the holes."""
        self.sink: SharedSink | None = None
        """The sink for the records of the core on a leader, or None on a follower."""
        self._is_settled = False

    @classmethod
    def open(cls, disk: Disk, settings: BrokerSettings, now_ms: int, cluster: bytes) -> Replica:
        """Open the replica on `disk` at its newest checkpoint.

        Raise `StoreDamaged` if the replica has lost data that this machine cannot recover. Raise another
        `StoreError` or `Halted` if the store cannot be used, or OSError if the disk fails.
        """
        transfer.install_copy(disk)
        if disk.size(layout.REFETCH) >= 0:
            raise StoreDamaged("Another node's copy is to take this one's place: cluster refetch was called.")
        shared, evidence = SharedPart(Fold(cluster)), EvidenceFile.open(disk)
        end = reset_to_checkpoint(disk)
        core = Broker.recover(disk, settings, now_ms, end, shared, keeps_tail=True)
        replica = cls(disk, core, shared, evidence)
        replica.require_sound()
        assert core.end_offset == shared.fold.end, "a checkpoint's fold and core are of one place"
        return replica

    @property
    def fold(self) -> Fold:
        """The `Fold` of the shared log records that this node has read."""
        return self._shared.fold

    @property
    def beyond_checkpoint_bytes(self) -> int:
        """Number of accepted log bytes after the newest checkpoint. A node rereads these bytes at startup."""
        return self.core.durable_offset - self.core.written_offset

    @property
    def last_led(self) -> tuple[int, int] | None:
        """The shared log offset and the CRC-32 of the newest leader record in the evidence, or None."""
        claimed = self._proof.claimed
        return None if claimed is None else (claimed.record, claimed.crc)

    def require_sound(self, *, has_read_all: bool = False) -> None:
        """Raise `StoreDamaged` if the replica has lost data that this machine cannot recover.

        The start of the log is checked only if `has_read_all` is true, because unread records may include a
        retention record that trims the log.
        """
        for one in tuple(self.core.damage):
            if (one.part in _IRREPLACEABLE or one.lost_count) and not self._is_due_to_holes(one):
                raise StoreDamaged(f"{one.path}: {one.what}")
        store = self.core.store
        if has_read_all and store.log.first_offset > store.may_begin_at:
            raise StoreDamaged(describe_missing_segments(store.may_begin_at, store.log.first_offset))

    def _is_due_to_holes(self, one: DamagedPart) -> bool:
        """Return whether the damage is inside known holes and the segment has no other damage."""
        if not self._holes.has_any or one in self._of_holes:
            return self._holes.has_any
        if one.part == "log":
            log = self.core.store.log
            first, end = log.first_offset, log.durable_offset
            if one.path:  # without a path, the damage can be anywhere in the log
                first = int(one.path[-layout.OFFSET_DIGITS :])
                end = min(log.segments.end_of(first), end)
            if first not in log.segments.first_offsets:
                return False
            if holes.damage_outside_holes(self._disk, self.core.segment_bytes, first, end):
                return False
        elif not one.lost_count and not (one.part == "keep" and self._holes.keep_bytes):
            return False
        self._of_holes.add(one)
        return True

    def apply_next_record(self, offset: int, stored: bytes, now_ms: int) -> Step:
        """Apply the record at `offset` of the shared log, which must be the next record.

        All CRCs and offsets of a flush are verified before the flush is written to the log files.

        Raise `LogTrimmed` for a GENESIS record if this node does not have the data before that record. Raise
        `Halted` if the shared log contradicts the replica, or OSError if the disk fails. The replica is
        unusable after an OSError.
        """
        assert self.sink is None, "a leader's records are taken by its sink"
        step = self.fold.apply_record(offset, stored)
        fold = self.fold
        self._proof.check_fold(FoldProgress(fold.end, fold.chain, fold.next_offset, fold.last_read))
        if self.fold.end > self.core.end_offset and step.outcome is Outcome.NOTED:
            raise LogTrimmed(
                f"The cluster began with a store of {self.fold.end} bytes, and this node has none."
            )
        if step.outcome is Outcome.ACCEPTED:
            parts = zip(step.flush, step.offsets, strict=True)
            encoded = [one for part, at in parts for one in verify_records(part, at)]
            if any(_RETENTION in part.body for part in step.flush) and any(map(_is_log_cut, encoded)):
                self._shared.is_before_flush = True
                self.checkpoint(now_ms)
                self._shared.is_before_flush = False
            self._tail.prepare_flush(step.flush, self._proof)
            self.core.append_replicated(encoded, step.flush[-1].end, now_ms)
            assert self.core.end_offset == self.fold.end, "the core is elsewhere than the fold"
        if step.outcome in _EVIDENT:
            self._write_evidence()
        return step

    def sync(self) -> None:
        """Sync the accepted part of the log files, and then sync the `evidence` file.

        Any thread may call this method, but only one thread at a time. Raise OSError if the disk fails. The
        replica is unusable after an OSError.
        """
        written = self._evidence.written
        if written is None:
            return
        end = min(written.end, self.core.end_offset)  # after startup, the evidence may be ahead of the core
        for first in self.core.store.log.segments.touched(self._synced_end, end):
            self._disk.sync(layout.segment_path(first))
        self._evidence.sync()
        self._synced_end = max(self._synced_end, end)

    def prepare_to_lead(self) -> None:
        """Prepare the replica of a candidate for leadership. The node must have read the whole shared log.

        Valid records after the accepted end of the log are set aside. Raise `EngineUnavailable` if this
        node's evidence is not confirmed yet, or OSError if the disk fails. The replica is unusable after an
        OSError.
        """
        if not self._proof.can_lead:
            raise EngineUnavailable(
                f"The shared log was not read up to byte {self._proof.accepted_end} of the log, which this "
                "node has read before."
            )
        self._tail.truncate_at(self.core.end_offset)

    def checkpoint(self, now_ms: int) -> None:
        """Write a checkpoint, and delete the log segments that both checkpoints cover.

        Raise OSError if the disk fails.
        """
        done = self.core.checkpoint(now_ms)
        done.write(self._disk)
        self.core.complete_checkpoint(done)
        self.core.delete_covered()
        self.core.timer_repair.check_on_follower(self._disk, now_ms)

    def claim_due_checkpoint(self) -> bool:
        """Return whether an additional checkpoint is due after a catch-up or a takeover.

        Return True at most once after the replica is opened and at most once after each takeover. Return
        False before the node has read the shared log up to the evidence record.
        """
        if self._is_settled or not self._proof.can_lead:
            return False
        self._is_settled = True
        return self.beyond_checkpoint_bytes >= EXTRA_CHECKPOINT_BYTES

    def start_leading(self, engine: Engine, now_ms: int, clock: Callable[[], int], node: str = "") -> None:
        """Let the core write to the shared log. This node must have written the newest EPOCH record.

        The core's first record contains the epoch, the node name `node` and the finalized version. Raise the
        same errors as `prepare_to_lead`.
        """
        self.prepare_to_lead()
        self._is_settled = False
        local = self.core.local_sink
        self.sink = SharedSink(local, engine, self.fold, clock, self._write_evidence)
        self.core.write_to(self.sink)
        self.core.begin(now_ms, leases_until_ms=now_ms + LEASE_MS_MIN)
        self.core.epoch.raise_to(self.fold.epoch, now_ms, node, self.fold.finalized)
        self.core.receiving.record_extended_leases(now_ms)

    def _write_evidence(self) -> None:
        """Write new evidence. The log files must already contain all records that the evidence covers.

        Raise OSError if the disk fails.
        """
        fold = self.fold
        fresh = self._proof.new_evidence(fold.epoch, fold.end, fold.chain, fold.last_led)
        if fresh is not None:
            self._evidence.write(fresh)


def newest_checkpoint(disk: Disk) -> int:
    """Return the offset of the newest checkpoint with the state of a `Fold`, or 0 if there is none."""
    start = snapshot.newest(disk)
    return start.offset if start is not None and SHARED in start.parts else 0


def reset_to_checkpoint(disk: Disk) -> int:
    """Reset the published end of a node's store to the newest checkpoint, and return its offset.

    Raise OSError if the disk fails.
    """
    offset = newest_checkpoint(disk)
    layout.republish_durable(disk, offset, may_go_back=True)
    return offset


def _is_log_cut(encoded: bytes) -> bool:
    """Return whether an encoded record is a retention record that trims the log."""
    if _RETENTION not in encoded:
        return False
    return any(isinstance(fact, LogCut) and fact.is_done for fact in facts_of(decode(encoded)))
