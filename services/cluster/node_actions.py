"""The operations that a follower or candidate performs on the engine and the replica.

The election state machine selects the action to run. Each method runs one action and returns a result for the
state machine. The node runs actions in worker threads, because they block on engine or disk I/O. Only one
action runs at a time, except that `check_copy_and_disk` and `append_complaint` may run concurrently with
another action. The simulation calls the same methods.

On a follower or candidate, only these actions access the replica. On a leader, the event loop owns the
replica (`services.cluster.leading.leader_term`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from commitlog.disk.disk import Disk
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies.checkpoints import OwnCopy
from services.cluster.copies.copying import StoreCopier
from services.cluster.election import health
from services.cluster.election.health import Health
from services.cluster.election.inputs import (
    CopiesFound,
    CopyFetched,
    EpochAppended,
    EpochConfirmed,
    HealthCheckCompleted,
    Input,
    ReadCompleted,
    RecordApplied,
    ReplicaOpened,
    read_progress_of,
)
from services.cluster.election.table import ActionType
from services.cluster.identity import Member
from services.cluster.peers import Identity
from services.cluster.replica import Replica
from services.cluster.watching import clocks as clocks_of_all
from sharedlog.engine import Engine, Head
from sharedlog.engines import Beginning
from sharedlog.errors import EngineRefused, EngineUnavailable, LogDamaged
from sharedlog.fold import Outcome, Position
from sharedlog.holdings import Unreadable
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES, records_before_gap
from sharedlog.record import encode
from sharedlog.witness import Witness, read_crc

CHECKPOINT_RECORDS: Final = 20_000
"""Number of shared log records, including BEAT records, between two checkpoints."""


class Clocks(NamedTuple):
    """A node's wall clock and monotonic clock in milliseconds."""

    wall: Callable[[], int]
    monotonic: Callable[[], int]


class NodeActions:
    """The actions of the node `me`. The callback `pass_input` passes intermediate results to the election."""

    def __init__(
        self,
        me: Member,
        began: Beginning,
        engine: Engine,
        disk: Disk,
        settings: BrokerSettings,
        clocks: Clocks,
        read_identity: Callable[[], Identity],
        own_health: Health,
        pass_input: Callable[[Input, int], None],
    ) -> None:
        self.me, self._began, self.engine = me, began, engine
        self._disk, self._settings, self.clocks, self.read_identity = disk, settings, clocks, read_identity
        self._health, self._pass_input = own_health, pass_input
        self.clock_comparison = clocks_of_all.ClockComparison(own_health.lag_and_skew, clocks.monotonic)
        self.identity = read_identity()
        """The identity of this node at the last check. Only the event loop sets this attribute."""
        self.own_copy = OwnCopy(me.node, me.http, began, disk, self.http_certificate_pem)
        self.copying = StoreCopier(me.node, self.own_copy, began, engine, disk)
        self.witness = Witness(clocks.monotonic)
        self.replica: Replica | None = None
        """The open replica, or None while a copy replaces it. Only the event loop sets this attribute."""

    def prepare_action(self, action: ActionType) -> None:
        """Release the replica if `action` replaces it. Call this method only from the event loop."""
        if action in (ActionType.OPEN_REPLICA, ActionType.FETCH_COPY) and self.replica is not None:
            self.witness.record_progress(self.replica.fold)
        if action is ActionType.FETCH_COPY:
            self.replica = None

    def apply_result(self, answer: Input) -> None:
        """Store the replica or identity that an action returned.

        Call this method only from the event loop.
        """
        if isinstance(answer, ReplicaOpened):
            self.replica = answer.replica
            self.witness.restore(answer.replica.last_led)
        elif isinstance(answer, HealthCheckCompleted):
            self.identity, self._health.has_room = answer.identity, answer.has_room

    @property
    def open_replica(self) -> Replica:
        """The open replica. Raise AssertionError if no replica is open."""
        assert self.replica is not None, "an action without a replica"
        return self.replica

    def unreadable(self, error: Exception) -> Unreadable | None:
        """Return the unreadable record that caused `error`, or None.

        Call this method only from the event loop.
        """
        if not isinstance(error, LogDamaged) or self.replica is None:
            return None
        fold = self.replica.fold
        record = fold.next_offset if error.record is None else error.record
        return Unreadable(record, fold.end, error.detail)

    def open(self, _: Any = None) -> ReplicaOpened:
        """Open the replica at its newest checkpoint.

        Raise a `StoreError` or `Halted` if the store cannot be used, or OSError if the disk fails.
        """
        replica = Replica.open(self._disk, self._settings, self.clocks.wall(), self._began.cluster)
        self.copying.verify_fetched_copy(replica)
        return ReplicaOpened(replica.fold.epoch, replica.fold.leads, read_progress_of(replica.fold), replica)

    def read(self, must_check: bool) -> ReadCompleted:
        """Read up to a few MiB of new shared log records, and apply these records to the replica.

        If `must_check` is true, first verify that the engine still has the records that this node has already
        read. Raise `EngineUnavailable`, `Halted`, `LogTrimmed` or `NoCluster` if the log cannot be read, or
        OSError if the disk fails. The replica is unusable after an OSError.
        """
        replica = self.open_replica
        if must_check:
            self.witness.require_records(self.engine, replica.fold)
        answer = self.catch_up()
        is_due = replica.core.is_checkpoint_due or self.has_multiple_records(replica)
        if is_due or (not answer.records and replica.claim_due_checkpoint()):
            replica.checkpoint(self.clocks.wall())
        return answer

    def catch_up(self, _: Any = None) -> ReadCompleted:
        """Read and apply up to a few MiB of new shared log records. Raise the same errors as `read`."""
        replica = self.open_replica
        fold = replica.fold
        found = self.engine.read(fold.next_offset, READ_BYTES)
        read_ms = self.clocks.monotonic()  # the election timeout starts at the end of the read
        for one in records_before_gap(self.engine, fold, found):
            if self.witness.is_replaced(one):
                self.witness.require_records(self.engine, fold)
                break
            step = replica.apply_next_record(one.offset, one.stored, self.clocks.wall())
            if step.outcome is Outcome.READ_AGAIN:
                break
            self.clock_comparison.record_leader_clock(one, step.record)
            self._pass_input(RecordApplied(step), read_ms)
        self._health.lag_and_skew.record_read(found, lambda: self.engine.bounds()[1])
        is_listed = fold.holdings.of(self.me.node) is not None
        return ReadCompleted(
            len(found), read_progress_of(fold), fold.is_founded, is_listed, self._health.unfit_reason()
        )

    def has_multiple_records(self, replica: Replica) -> bool:
        """Return whether at least CHECKPOINT_RECORDS records follow the newest checkpoint."""
        shared = replica.core.shared_in_checkpoint
        since = 0 if shared is None else int(shared["next_offset"])
        return replica.fold.next_offset - since >= CHECKPOINT_RECORDS

    def append_complaint(self, complaint: tuple[int, int]) -> None:
        """Append a complaint to the shared log, because the leader does not respond to client calls."""
        known = self.open_replica.fold.holdings.of(self.me.node)
        if known is not None:
            with suppress(EngineUnavailable, EngineRefused):  # the complaint is repeated later
                self.engine.append_unchecked(self.own_copy.complaint(known, *complaint))

    def check_copy_and_disk(self, has_read_all: bool) -> HealthCheckCompleted:
        """Check the replica and the free disk space, and announce the newest checkpoint in the shared log.

        Raise `StoreDamaged` if the replica is damaged, or OSError if the disk fails.
        """
        replica = self.open_replica
        has_room = health.has_room(self._disk, replica.core.segment_bytes)
        identity = self.announce_copy(replica, has_read_all)
        return HealthCheckCompleted(read_progress_of(replica.fold), has_room, identity)

    def announce_copy(self, replica: Replica, has_read_all: bool) -> Identity:
        """Check and sync the replica, announce its newest checkpoint, and return the identity of this node.

        Raise `StoreDamaged` if the replica is damaged, or OSError if the disk fails.
        """
        replica.require_sound(has_read_all=has_read_all)
        replica.sync()
        self.copying.announce_checkpoint(replica, self.clocks.monotonic())
        return self.read_identity()

    def append_epoch(self, holder: bytes) -> EpochAppended:
        """Append an EPOCH record unless the shared log contains leader records that this node has not read.

        Raise `EngineRefused` or `EngineUnavailable` if the engine does not confirm the append, or OSError if
        the disk fails.
        """
        self.open_replica.prepare_to_lead()
        fold = self.open_replica.fold
        me = self.me._replace(certificate=self.read_identity().certificate)
        candidate = Candidate(fold, holder, me._asdict())
        head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
        following = Head(candidate.epoch.epoch, holder, head.position)
        offset = self.engine.append_if(head, [encode(candidate.epoch)], following)
        return EpochAppended(None if offset is None else (candidate, offset))

    def confirm(self, candidacy: tuple[Candidate, int]) -> EpochConfirmed:
        """Check whether this node has won the election, and verify that the engine has not lost any records.

        Raise `EngineUnavailable` if the engine does not respond, or `Halted` if the engine has lost a record
        that this process has read.
        """
        (candidate, offset), fold = candidacy, self.open_replica.fold
        self.catch_up()
        if fold.next_offset <= offset:
            return EpochConfirmed(None)
        self.witness.require_records(self.engine, fold)
        again = (
            None if candidate.record_to_verify is None else read_crc(self.engine, candidate.record_to_verify)
        )
        return EpochConfirmed(candidate.has_won(fold, again))

    def copy(self, where: Unreadable | None = None) -> CopyFetched:
        """Fetch a copy of the store from another node.

        If `where` is given, the copy must extend beyond that unreadable record.

        Raise `EngineUnavailable` if the engine does not respond, or `VersionUnsupported` if this node does
        not support the cluster version. Raise `CopyRefused` if no node provides a copy, or OSError if the
        disk fails.
        """
        found = self.copying.find_copies(where)
        if found.epoch is not None:
            self._pass_input(CopiesFound(found.epoch.epoch, found.epoch.facts), self.clocks.monotonic())
        return CopyFetched(self.copying.fetch_copy(found, where))

    def http_certificate_pem(self) -> str:
        """Return the PEM certificate of this node's HTTP interface, or "" for an http:// URL."""
        return self.identity.certificate if self.me.http.startswith("https:") else ""


ACTION_METHODS: Final[dict[ActionType, Callable[[NodeActions, Any], Input | None]]] = {
    ActionType.OPEN_REPLICA: NodeActions.open,
    ActionType.READ_LOG: NodeActions.read,
    ActionType.CATCH_UP: NodeActions.catch_up,
    ActionType.APPEND_COMPLAINT: NodeActions.append_complaint,
    ActionType.CHECK_HEALTH: NodeActions.check_copy_and_disk,
    ActionType.APPEND_EPOCH: NodeActions.append_epoch,
    ActionType.CONFIRM_EPOCH: NodeActions.confirm,
    ActionType.FETCH_COPY: NodeActions.copy,
}
"""The method that runs each action."""
