"""Announces checkpoints, trims the shared log, and fetches copies of the store from other nodes.

A node announces a checkpoint in the shared log only after reading it back (`checkpoints`). The leader trims
shared log records that no node needs.

To fetch a copy, a node appends a HOLD record, which prevents trimming, and requests a complete copy from
another node (`transfer`). If a record is unreadable, the copy must extend past that record (`log_damage`). If
no node provides a copy but the shared log is complete, the node deletes its store and reads the shared log
from the start. A node verifies a fetched copy when it is opened, because the transfer checksums do not detect
damage on the sender's disk.

Rules
1. A failed announcement is repeated (`OwnCopy`). A failed trim is retried at the next periodic check.
2. A node first requests the newest copy. Each retry begins with the next copy, because any copy may be
   damaged.
3. A node that does not support the cluster version fetches no copy.
4. A node replaces its store only if the replacement covers the node's evidence (`services.cluster.evidence`).
   The replacement is a copy from another node or the complete shared log.

All methods block on the engine, the disk, or the network. Call them one at a time from a worker thread.

Cost: the receiver reads a copy twice and writes it once. The cost of announcements and of sending a copy is
described in `checkpoints` and `transfer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final

import structlog

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged, StoreError
from services.cluster import evidence_file, holes
from services.cluster.copies import transfer
from services.cluster.copies.checkpoints import LogFacts, OwnCopy, find_copies
from services.cluster.copies.transfer import FetchedCopy
from services.cluster.errors import CopyRefused
from services.cluster.evidence import (
    ChainComparison,
    Evidence,
    EvidenceVerdict,
    RecordLookup,
    compare_chain,
    replacement_verdict,
)
from services.cluster.replica import Replica
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted, LogTrimmed, VersionUnsupported
from sharedlog.fold import Fold, Position
from sharedlog.holdings import Holding, Unreadable
from sharedlog.reading import read_until
from sharedlog.versions import SUPPORTED, describe_unsupported
from sharedlog.witness import GONE, read_crc

COMPARED_BYTES: Final = 1024 * 1024
"""Number of bytes to compare before the accepted end if the chain of a copy begins after that end."""
_LOOKS: Final = {None: RecordLookup.TRIMMED, GONE: RecordLookup.GONE}
log = structlog.get_logger()

Fetch = Callable[[str, str, str, Disk, transfer.Require], None]


class StoreCopier:
    """Announces the store on `disk`, and fetches the copies that are announced in `engine`."""

    def __init__(self, name: str, own_copy: OwnCopy, began: Beginning, engine: Engine, disk: Disk) -> None:
        self._name, self._own, self._began, self._engine, self._disk = name, own_copy, began, engine, disk
        self._attempts, self._words = 0, Lock()
        """A lock that prevents the announcement of a withdrawn copy."""
        self._reported_unreadable: tuple[int, int] | None = None
        """The unreadable record that was reported last, and the epoch of that report."""
        self._is_fetched = False
        self.fetch: Fetch = transfer.fetch_copy
        """The function that fetches a copy from another node, by default `transfer.fetch_copy`.

        The arguments are the URL, the certificate and the secret of the other node, the disk of this node,
        and a callback. The callback raises `CopyRefused` if the fetched copy must not replace this node's
        store.
        """
        self.trimmed_below = 0
        """The shared log offset up to which this node has trimmed the log."""

    def announce_checkpoint(self, replica: Replica, now_ms: int) -> None:
        """Read back and announce a new checkpoint. Raise `StoreDamaged` if the data is damaged."""
        number = self._own.number
        try:
            stored = self._own.checkpoint_announcement(replica, now_ms)
        except StoreDamaged:
            raise
        except (OSError, StoreError) as error:  # for example, retention has deleted a segment
            log.warning("the checkpoint is read back later", reason=str(error))
            return
        if stored is not None:
            with suppress(EngineUnavailable, EngineRefused), self._words:
                if self._own.number == number:
                    self._engine.append_unchecked(stored)

    def trim_log(self, fold: Fold) -> None:
        """Trim the shared log records that no node needs according to the holdings in `fold`."""
        below = fold.holdings.first_needed_record
        if below > self.trimmed_below:
            with suppress(EngineUnavailable, EngineRefused):
                self._engine.trim(below)
                self.trimmed_below = below

    def find_copies(self, where: Unreadable | None = None) -> LogFacts:
        """Find the copies that this node can fetch, and report the unreadable record `where`, if given.

        The unreadable record is reported once per epoch. Raise `EngineUnavailable` if the engine does not
        respond, or `VersionUnsupported` if this node does not support the cluster version.
        """
        beyond = -1 if where is None else where.record
        found = find_copies(self._engine, self._began.cluster, self._name, beyond)
        if why := describe_unsupported(found.finalized):
            raise VersionUnsupported(f"No copy was fetched: {why}.")
        if where is not None:
            told = where.record, 0 if found.epoch is None else found.epoch.epoch
            if self._reported_unreadable != told:
                known = found.own or Holding(0, supports=SUPPORTED, finalized=found.finalized)
                self._engine.append_unchecked(self._own.unreadable_report(known, where))
                self._reported_unreadable = told
        return found

    def fetch_copy(self, found: LogFacts, where: Unreadable | None = None) -> str:
        """Fetch an announced copy, or delete the store to read the shared log from the start.

        Return a description of the source. Raise `CopyRefused` if no node provides a copy,
        `EngineUnavailable` if the engine does not respond, or OSError if the disk fails.
        """
        refusals, turn = [], self._attempts % max(1, len(found.copies))
        self._attempts += 1
        for node, held in found.copies[turn:] + found.copies[:turn]:
            with self._words:
                self._engine.append_unchecked(
                    self._own.copy_withdrawal(held.next_record, found.finalized, where)
                )
            try:
                self.fetch(held.http, held.certificate, held.secret, self._disk, self._require_covered)
            except CopyRefused as error:
                refusals.append(f"{node}: {error}")
                continue
            self._is_fetched = True
            return f"node {node}, {held.http}"
        told = " ".join(refusals) or "No other node has told of one that reaches so far."
        if where is not None:
            raise CopyRefused(
                f"{told} A leader makes one that reaches beyond record {where.record}. Where no node leads, "
                "begin anew with what the nodes have: tidewheel cluster restore NEW-URL --from STORE"
            )
        if found.first == 0 and not self._began.facts.get("begins_at"):
            self._require_covered(None)
            transfer.delete_store(self._disk)
            return "the shared log, from its beginning"
        raise CopyRefused(f"The shared log begins at record {found.first}, so a copy is needed. {told}")

    def _require_covered(self, copy: FetchedCopy | None) -> None:
        """Raise `CopyRefused` if `copy` may lack accepted records that this node has read.

        If `copy` is None, the replacement is the whole shared log.
        """
        claimed = evidence_file.read(self._disk)
        if claimed is None or claimed.cluster != self._began.cluster:
            return
        trace = ChainComparison.NOT_READ if copy is None else compare_chain(copy.fold(), claimed)
        verdict = replacement_verdict(claimed, trace, self._look_up_evidence(claimed))
        if verdict is EvidenceVerdict.COMPARE:
            is_same = copy is not None and copy.has_same_bytes_before(claimed.end, COMPARED_BYTES)
            verdict = EvidenceVerdict.TAKE if is_same else EvidenceVerdict.REFUSE
        if (
            verdict is EvidenceVerdict.TAKE
            and trace is ChainComparison.NOT_READ
            and not self._has_records_missing_in_copy(copy, claimed)
        ):
            verdict = EvidenceVerdict.REFUSE
        if verdict is EvidenceVerdict.REFUSE:
            has = "The shared log" if copy is None else f"The copy, which ends at byte {copy.end},"
            raise CopyRefused(
                f"{has} lacks what this node has seen accepted, {claimed.description}, or nothing proves "
                "that it is there: it does not take this node's place. To give up what only this copy has: "
                "tidewheel cluster refetch --store STORE "
                f"--accept-loss-of {claimed.end}."
            )

    def _look_up_evidence(self, claimed: Evidence) -> RecordLookup:
        """Compare the evidence record with the record at the same offset of the shared log.

        Raise `EngineUnavailable` if the engine does not respond.
        """
        crc = read_crc(self._engine, claimed.record)
        return RecordLookup.SAME if crc == claimed.crc else _LOOKS.get(crc, RecordLookup.ANOTHER)

    def _has_records_missing_in_copy(self, copy: FetchedCopy | None, claimed: Evidence) -> bool:
        """Return whether the shared log contains all accepted records that the copy lacks.

        This method reads all of these records, because the engine may have lost some of them.
        """
        fold = Fold(self._began.cluster) if copy is None else copy.fold()
        try:
            read_until(self._engine, fold, claimed.record + 1)
        except (Halted, LogTrimmed) as error:
            log.warning("the shared log has not what a copy lacks", reason=str(error))
            return False
        return fold.has_position(Position(claimed.end, claimed.chain)) is True

    def verify_fetched_copy(self, replica: Replica) -> None:
        """Verify a fetched copy when it is opened for the first time.

        Raise `StoreDamaged` if the copy is damaged.
        """
        if not self._is_fetched:
            return
        commit_log, end = replica.core.store.log, replica.core.end_offset
        damaged = holes.damage_outside_holes(
            self._disk, replica.core.segment_bytes, commit_log.first_offset, end
        )
        for one in damaged:
            raise StoreDamaged(
                f"In the copy bytes {one.first_offset} to {one.end_offset} of the log are damaged."
            )
        self._own.record_verified_end(end)
        self._is_fetched = False
