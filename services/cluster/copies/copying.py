"""What a node does about its copy of the store: tells of it, lets the log go that all have, gets another's.

    tell      a checkpoint was read back (`checkpoints`)  --> CHECKPOINT or HOLD in the shared log
    trim      all nodes have what lies before a record    --> the leader lets the engine trim that
    get       HOLD, so that nothing behind is trimmed     --> another node's copy (`transfer`), whole
              a record cannot be read                     --> a copy beyond it (`log_damage`), or none
              no node gives one, the log is whole         --> an empty disk, and the log from its beginning
    opened    a copy was got, and the replica is open     --> read through, once: the sender's disk may have
                                                              spoiled what came along with sums that are right

Rules
1. A word that the engine did not take is said again (`OwnCopy`); a trim is tried again at the next look.
2. Of several copies the newest is asked for first, at the next try the one after it: it may be bad.
3. A copy of a version that this program does not support is not fetched.
4. A copy, or the log from its beginning, must cover the evidence of the copy that it replaces
   (`services.cluster.evidence`).

All of it waits for the engine, the disk or another node: it runs in a worker thread, one call at a time.

Cost: a copy is read twice and written once; see `checkpoints` and `transfer` for what telling and sending
cost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final

import structlog

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged, StoreError
from services.cluster import evidence_file, holes
from services.cluster.copies import transfer
from services.cluster.copies.checkpoints import Found, OwnCopy, look_for_copies
from services.cluster.copies.transfer import FetchedCopy
from services.cluster.errors import CopyRefused
from services.cluster.evidence import NO_RECORD, Evidence, Look, Trace, Verdict, covers, traced
from services.cluster.replica import Replica
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.errors import Halted, Refused, TooOld, Trimmed, Unknown
from sharedlog.fold import Fold, Position
from sharedlog.holdings import Holding, Unreadable
from sharedlog.reading import read_to
from sharedlog.versions import SUPPORTED, unsupported
from sharedlog.witness import GONE, crc_at

COMPARED_BYTES: Final = 1024 * 1024
"""How much of the log before the evidence is compared, where a copy has forgotten the chain there."""
_LOOKS: Final = {None: Look.TRIMMED, GONE: Look.GONE}
log = structlog.get_logger()

Fetch = Callable[[str, str, str, Disk, transfer.Require], None]


class Copying:
    """The copy on `disk` of the node `name`, and the copies that other nodes tell of in `engine`."""

    def __init__(self, name: str, own_copy: OwnCopy, began: Beginning, engine: Engine, disk: Disk) -> None:
        self._name, self._own, self._began, self._engine, self._disk = name, own_copy, began, engine, disk
        self._tries, self._words = 0, Lock()
        """Words of the own copy go one after the other, and none of one that was given up follows."""
        self._told_unreadable: tuple[int, int] | None = None
        """The record of which it was said that it cannot be read, and the epoch whose leader was told."""
        self._is_fetched = False
        self.fetch: Fetch = transfer.fetch
        """Get the copy of another node: its URL, its certificate, its secret, the disk to get it on.

        The last argument raises `CopyRefused` where the copy must not take the own one's place.
        """
        self.trimmed_below = 0
        """The record before which this node has let the shared log be trimmed."""

    def tell(self, replica: Replica, now_ms: int) -> None:
        """Tell of a new checkpoint, once it is read back; raise `StoreDamaged`."""
        number = self._own.number
        try:
            stored = self._own.to_tell(replica, now_ms)
        except StoreDamaged:
            raise
        except (OSError, StoreError) as error:  # a segment was deleted meanwhile, or the like
            log.warning("the checkpoint is read back later", reason=str(error))
            return
        if stored is not None:
            with suppress(Unknown, Refused), self._words:
                if self._own.number == number:
                    self._engine.note(stored)

    def trim(self, fold: Fold) -> None:
        """Let go of what every node has; the leader's records are read up to here."""
        below = fold.holdings.trims_below
        if below > self.trimmed_below:
            with suppress(Unknown, Refused):
                self._engine.trim(below)
                self.trimmed_below = below

    def look(self, where: Unreadable | None = None) -> Found:
        """Return what the shared log tells a node without a copy; raise `Unknown`, or `TooOld`.

        Tell each leader once where this node cannot read on, if that is why it needs one.
        """
        beyond = -1 if where is None else where.record
        found = look_for_copies(self._engine, self._began.cluster, self._name, beyond)
        if why := unsupported(found.finalized):
            raise TooOld(f"No copy was fetched: {why}.")
        if where is not None:
            told = where.record, 0 if found.epoch is None else found.epoch.epoch
            if self._told_unreadable != told:
                known = found.own or Holding(0, supports=SUPPORTED, finalized=found.finalized)
                self._engine.note(self._own.unreadable(known, where))
                self._told_unreadable = told
        return found

    def get(self, found: Found, where: Unreadable | None = None) -> str:
        """Get one of the copies that were found, or begin anew with the whole log; return from where.

        Raise `CopyRefused` if no node gives one, `Unknown`, or OSError.
        """
        refusals, turn = [], self._tries % max(1, len(found.copies))
        self._tries += 1
        for node, held in found.copies[turn:] + found.copies[:turn]:
            with self._words:
                self._engine.note(self._own.hold(held.next_record, found.finalized, where))
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
            transfer.wipe(self._disk)
            return "the shared log, from its beginning"
        raise CopyRefused(f"The shared log begins at record {found.first}, so a copy is needed. {told}")

    def _require_covered(self, copy: FetchedCopy | None) -> None:
        """Raise `CopyRefused` if a copy, or the whole log, lacks what the own copy has seen accepted."""
        claimed = evidence_file.read(self._disk)
        if claimed is None or claimed.cluster != self._began.cluster:
            return
        trace = Trace.NOT_READ if copy is None else traced(copy.fold(), claimed)
        verdict = covers(claimed, trace, self._look_at(claimed))
        if verdict is Verdict.COMPARE:
            is_same = copy is not None and copy.same_bytes_before(claimed.end, COMPARED_BYTES)
            verdict = Verdict.TAKE if is_same else Verdict.REFUSE
        if verdict is Verdict.TAKE and trace is Trace.NOT_READ and not self._has_rest(copy, claimed):
            verdict = Verdict.REFUSE
        if verdict is Verdict.REFUSE:
            has = "The shared log" if copy is None else f"The copy, which ends at byte {copy.end},"
            raise CopyRefused(
                f"{has} lacks what this node has seen accepted, {claimed.said}, or nothing proves that it is "
                "there: it does not take this node's place. To give up what only this copy has: "
                "tidewheel cluster refetch --store STORE "
                f"--accept-loss-of {claimed.end}."
            )

    def _look_at(self, claimed: Evidence) -> Look:
        """Return what the engine has of the record of the evidence; raise `Unknown`."""
        if claimed.record == NO_RECORD:
            return Look.TRIMMED
        crc = crc_at(self._engine, claimed.record)
        return Look.SAME if crc == claimed.crc else _LOOKS.get(crc, Look.ANOTHER)

    def _has_rest(self, copy: FetchedCopy | None, claimed: Evidence) -> bool:
        """Return whether the shared log has all that a copy lacks of what the own copy has seen accepted.

        All of it is read: a row that is lost between the copy and the evidence is lost with the own copy.
        """
        fold = Fold(self._began.cluster) if copy is None else copy.fold()
        try:
            read_to(self._engine, fold, claimed.record + 1)
        except (Halted, Trimmed) as error:
            log.warning("the shared log has not what a copy lacks", reason=str(error))
            return False
        return fold.knows(Position(claimed.end, claimed.chain)) is True

    def opened(self, replica: Replica) -> None:
        """Read through what was fetched, the first time that it is open; raise `StoreDamaged`."""
        if not self._is_fetched:
            return
        commit_log, end = replica.core.store.log, replica.core.end_offset
        damaged = holes.damage_beside(self._disk, replica.core.segment_bytes, commit_log.first_offset, end)
        for one in damaged:
            raise StoreDamaged(
                f"In the copy bytes {one.first_offset} to {one.end_offset} of the log are damaged."
            )
        self._own.checked(end)
        self._is_fetched = False
