"""A node's copy of the cluster's store: what the shared log has accepted, folded into a core of its own.

    open    go back to the newest checkpoint -> recover the core from that
    take    record of the shared log -> fold; an accepted flush -> the same bytes into the log's files -> core
    lead    begin -> the core writes to the shared log from now on, and this copy follows its own records

Rules
1. At a start nothing behind the newest checkpoint is believed, whatever its CRC: sound bytes may lie there
   that the cluster never accepted, and after a power cut holes. The core begins there, and the rest is folded
   again from the shared log. Until that agrees the bytes stay in place (`tail`): they may be all there is.
   What they prove is decided by `evidence`, which each accepted flush writes anew.
2. A checkpoint holds the fold (`SHARED`) and the core at one place of the history. It is taken between two
   flushes, of accepted records only.
3. A core that follows appends nothing and does nothing that is due: both are the leader's to decide, and come
   as records. What this node finds by itself (damage, room on the disk) does not change the history.
4. What retention cuts off is decided by a record and done where the record stands: halves that are open then
   go to the keep file of this node, and a checkpoint is taken before, so that no timer needs the log below.
   Segments are deleted when this node's two checkpoints cover them.
5. A start is often followed by another one. So a checkpoint is taken at the end of the catch-up after an
   opening, and at the first look of a lead, where AGAIN_BYTES of log or more follow the newest one.
6. A copy that met a failure of its disk is void, as a core is: it is opened again. One that has lost what
   only other machines have (`StoreDamaged`) is replaced by another node's (`services.cluster.copies`).

Cost: a follower writes and applies each record once, as a start does; no more memory than the leader. Weak
spot: going back to the checkpoint reads up to `SNAPSHOT_LOG_BYTES_MAX` of the shared log again at each start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from commitlog import layout, snapshot
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import LogCut, facts_of
from commitlog.kinds import RETENTION_TOPIC
from commitlog.record import decode
from services.broker.broker import SHARED, Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Damaged
from services.broker.start_damage import missing_from
from services.cluster import holes
from services.cluster.copies import transfer
from services.cluster.evidence import NO_RECORD, CopyProof, Evidence, Read, traced
from services.cluster.evidence_file import EvidenceFile
from services.cluster.tail import Tail
from sharedlog.bodies import sound_records
from sharedlog.engine import Engine
from sharedlog.errors import Trimmed, Unknown
from sharedlog.fold import Fold, Outcome, Step
from sharedlog.sink import SharedSink

LEASE_MS_MIN: Final = 30_000
"""The least time for which a recorded lease stands after a takeover, in which no consumer could acknowledge.

A takeover lengthens a lease once; see `services.broker.groups.leases`."""
AGAIN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of log that are worth a checkpoint where they would be read again by the next start: 0.4 s of it."""
_EVIDENT: Final = frozenset((Outcome.ACCEPTED, Outcome.ALIVE, Outcome.NEW_EPOCH))
"""What became of records after which the evidence is written anew."""
_RETENTION: Final = RETENTION_TOPIC.encode()
_IRREPLACEABLE: Final = frozenset(("log", "keep"))
"""Parts of a store that are derived from nothing else (`services.broker.spine.values.Damaged`)."""


class SharedPart:
    """The fold, as a part of the core's snapshots."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.is_before_flush = False
        """Whether the core has not taken in yet what the fold has accepted last."""

    def freeze(self) -> Any:
        """Return what a snapshot keeps."""
        return self.fold.freeze(before_flush=self.is_before_flush)

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over."""
        self.fold = Fold.thaw(frozen)


class Replica:
    """A node's copy of the cluster's store; make it with `Replica.open`."""

    def __init__(self, disk: Disk, core: Broker, shared: SharedPart, evidence: EvidenceFile) -> None:
        self._disk, self.core, self._shared, self._evidence = disk, core, shared, evidence
        fold, self._synced_end = shared.fold, core.end_offset
        assert fold.cluster is not None, "a copy is of a cluster"
        begins = Read(fold.end, fold.chain, fold.next_offset, None)
        self._proof = CopyProof(fold.cluster, evidence.written, begins, traced(fold, evidence.written))
        self._tail = Tail(disk, core.segment_bytes, core.end_offset)
        self._holes = holes.read(disk)
        self._of_holes: set[Damaged] = set()
        """What was told of damage, and comes of the holes that an operator has accepted."""
        self.sink: SharedSink | None = None
        """Where the core writes while this node leads."""
        self._is_settled = False

    @classmethod
    def open(cls, disk: Disk, settings: BrokerSettings, now_ms: int, cluster: bytes) -> Replica:
        """Open the copy on `disk`, at its newest checkpoint; raise a `StoreError`, `Halted`, or OSError.

        Raise `StoreDamaged` where something is gone that nothing on this machine replaces.
        """
        transfer.take_over(disk)
        _keep_what_was_published(disk, cluster)
        if disk.size(layout.REFETCH) >= 0:
            raise StoreDamaged("Another node's copy is to take this one's place: cluster refetch was called.")
        shared, evidence = SharedPart(Fold(cluster)), EvidenceFile.open(disk)
        end = go_back_to_checkpoint(disk)
        core = Broker.recover(disk, settings, now_ms, end, shared, keeps_tail=True)
        replica = cls(disk, core, shared, evidence)
        replica.require_sound()
        assert core.end_offset == shared.fold.end, "a checkpoint's fold and core are of one place"
        return replica

    @property
    def fold(self) -> Fold:
        """What this node has read of the shared log."""
        return self._shared.fold

    @property
    def beyond_checkpoint_bytes(self) -> int:
        """The accepted bytes behind the newest checkpoint on disk: this node reads them again at a start."""
        return self.core.durable_offset - self.core.written_offset

    @property
    def last_led(self) -> tuple[int, int] | None:
        """The offset and the CRC-32 of the newest record of a leader's that this copy has ever folded."""
        claimed = self._proof.claimed
        is_known = claimed is not None and claimed.record != NO_RECORD
        return (claimed.record, claimed.crc) if claimed is not None and is_known else None

    def require_sound(self, *, has_read_all: bool = False) -> None:
        """Raise `StoreDamaged` if something of the copy is gone that nothing on this machine replaces.

        Only a copy that has read all there was when it was opened knows how far its log was cut before.
        """
        for one in tuple(self.core.damage):
            if (one.part in _IRREPLACEABLE or one.lost_count) and not self._is_of_holes(one):
                raise StoreDamaged(f"{one.path}: {one.what}")
        store = self.core.store
        if has_read_all and store.log.first_offset > store.may_begin_at:
            raise StoreDamaged(missing_from(store.may_begin_at, store.log.first_offset))

    def _is_of_holes(self, one: Damaged) -> bool:
        """Return whether damage comes of holes in the log; its segment has none beside them then."""
        if not self._holes.are_there or one in self._of_holes:
            return self._holes.are_there
        if one.part == "log":
            log = self.core.store.log
            first, end = log.first_offset, log.durable_offset
            if one.path:  # without one it is any place of the log
                first = int(one.path[-layout.OFFSET_DIGITS :])
                end = min(log.segments.end_of(first), end)
            if first not in log.segments.first_offsets:
                return False
            if holes.damage_beside(self._disk, self.core.segment_bytes, first, end):
                return False
        elif not one.lost_count and not (one.part == "keep" and self._holes.keep_bytes):
            return False
        self._of_holes.add(one)
        return True

    def take(self, offset: int, stored: bytes, now_ms: int) -> Step:
        """Take the next record of the shared log; raise `Halted`, or OSError: then the copy is void.

        What a flush holds is held to the CRC and place of each record before anything is written.

        Raise `Trimmed` at a GENESIS that begins behind bytes that this node has not got.
        """
        assert self.sink is None, "a leader's records are taken by its sink"
        step = self.fold.take(offset, stored)
        fold = self.fold
        self._proof.read(Read(fold.end, fold.chain, fold.next_offset, fold.last_read))
        if self.fold.end > self.core.end_offset and step.outcome is Outcome.NOTED:
            raise Trimmed(f"The cluster began with a store of {self.fold.end} bytes, and this node has none.")
        if step.outcome is Outcome.ACCEPTED:
            parts = zip(step.flush, step.offsets, strict=True)
            encoded = [one for part, at in parts for one in sound_records(part, at)]
            if any(_RETENTION in part.body for part in step.flush) and any(map(_cuts, encoded)):
                self._shared.is_before_flush = True
                self.checkpoint(now_ms)
                self._shared.is_before_flush = False
            self._tail.meet(step.flush, self._proof)
            self.core.take_in(encoded, step.flush[-1].end, now_ms)
            assert self.core.end_offset == self.fold.end, "the core is elsewhere than the fold"
        if step.outcome in _EVIDENT:
            self._keep_evidence()
        return step

    def sync(self) -> None:
        """Take what was accepted to disk, then the evidence of it; raise OSError: then the copy is void.

        Any thread may call this, one at a time.
        """
        written = self._evidence.written
        if written is None:
            return
        end = min(written.end, self.core.end_offset)  # evidence of before may be ahead of what was read again
        for first in self.core.store.log.segments.touched(self._synced_end, end):
            self._disk.sync(layout.segment_path(first))
        self._evidence.sync()
        self._synced_end = max(self._synced_end, end)

    def require_may_stand(self) -> None:
        """Make the copy one that may lead, once its fold has read all; raise `Unknown` if it may not.

        What lies behind the end was never accepted, and is set aside. Raise OSError: then the copy is void.
        """
        if not self._proof.may_lead:
            raise Unknown(
                f"The shared log was not read up to byte {self._proof.accepted_end} of the log, which this "
                "node has read before."
            )
        self._tail.end_at(self.core.end_offset)

    def checkpoint(self, now_ms: int) -> None:
        """Write a checkpoint, and delete the segments that two of them cover; raise OSError."""
        done = self.core.checkpoint(now_ms)
        done.write(self._disk)
        self.core.checkpointed(done)
        self.core.delete_covered()
        self.core.mending.read_on(self._disk, now_ms)

    def settles(self) -> bool:
        """Return whether a checkpoint is to be taken now that the copy is up to date, or has led for a while.

        That is true once for an opening and once for a lead, and never before the evidence is reached.
        """
        if self._is_settled or not self._proof.may_lead:
            return False
        self._is_settled = True
        return self.beyond_checkpoint_bytes >= AGAIN_BYTES

    def lead(self, engine: Engine, now_ms: int, clock: Callable[[], int], node: str = "") -> None:
        """Let the core decide: the fold has just read that this node leads.

        Its first record is the epoch, which names `node` and the finalized version.
        """
        self.require_may_stand()
        self._is_settled = False
        local = self.core.local_sink
        self.sink = SharedSink(local, engine, self.fold, clock, self._keep_evidence)
        self.core.write_to(self.sink)
        self.core.begin(now_ms, leases_until_ms=now_ms + LEASE_MS_MIN)
        self.core.epoch.raise_to(self.fold.epoch, now_ms, node, self.fold.finalized)
        self.core.receiving.keep_lengthened(now_ms)

    def _keep_evidence(self) -> None:
        """Write what the shared log has accepted, once it is in this log's files; raise OSError."""
        fold = self.fold
        fresh = self._proof.accepted(fold.epoch, fold.end, fold.chain, fold.last_led)
        if fresh is not None:
            self._evidence.write(fresh)


def _keep_what_was_published(disk: Disk, cluster: bytes) -> None:
    """Make evidence, durably, of what readers were told of a store whose version kept none; raise OSError."""
    if disk.size(layout.EVIDENCE) >= 0:
        return
    published = layout.published(disk)
    seen = max(published.offset, published.accepted_offset)
    if seen > newest_checkpoint(disk):
        EvidenceFile(disk, Evidence(cluster, seen, 0, published.epoch, NO_RECORD, 0))


def newest_checkpoint(disk: Disk) -> int:
    """Return the offset of the newest checkpoint that a node may go back to; 0 if there is none."""
    start = snapshot.newest(disk)
    return start.offset if start is not None and SHARED in start.parts else 0


def go_back_to_checkpoint(disk: Disk) -> int:
    """Let readers of a node's store stop at its newest checkpoint; return its offset. Raise OSError."""
    offset = newest_checkpoint(disk)
    layout.republish_durable(disk, offset, may_go_back=True)
    return offset


def _cuts(encoded: bytes) -> bool:
    """Return whether a record is one of retention that cuts the log."""
    if _RETENTION not in encoded:
        return False
    return any(isinstance(fact, LogCut) and fact.is_done for fact in facts_of(decode(encoded)))
