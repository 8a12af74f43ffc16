"""The acts of a node that follows or stands: what the election says, done to the engine and the replica.

Each method carries out one act and returns its answer for the election. It waits for the engine or the disk,
so a node calls it in a worker thread; the election has one act under way, and `look` alone runs beside the
others. The simulation calls the same methods.

A replica belongs to these acts from `open` on, and to the event loop once the node leads
(`services.cluster.lead`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from commitlog.disk import Disk
from services.broker.settings import BrokerSettings
from services.cluster import health
from services.cluster.copies import Found, OwnCopy
from services.cluster.copying import Copying
from services.cluster.election_inputs import (
    CheckpointDone,
    Compared,
    ComplaintDone,
    CopiesFound,
    CopyFetched,
    EpochAppended,
    HistoryKept,
    Input,
    LookDone,
    ReadDone,
    ReplicaOpened,
    SteppedOver,
)
from services.cluster.election_table import Act
from services.cluster.health import Health
from services.cluster.identity import Member
from services.cluster.peers import Shown
from services.cluster.replica import Replica
from sharedlog.engine import Engine, Head
from sharedlog.engines import Beginning
from sharedlog.errors import Refused, Unknown
from sharedlog.fold import Fold, Outcome, Position, Step
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES, require_next
from sharedlog.record import encode
from sharedlog.witness import Witness, crc_at

CHECKPOINT_RECORDS: Final = 20_000
"""How many records of the shared log, BEATs too, lie behind a checkpoint before the next."""


class Clocks(NamedTuple):
    """The clocks of a node, in ms: wall time, and one that never goes back."""

    wall: Callable[[], int]
    monotonic: Callable[[], int]


class Place(NamedTuple):
    """How far a node has read: the log offset, the next record, and when it last read (0: never)."""

    end: int
    next_offset: int
    read_ms: int


class Acts:
    """The acts of the node `me`; `heard` is given each record that was read, and when."""

    def __init__(
        self,
        me: Member,
        began: Beginning,
        engine: Engine,
        disk: Disk,
        settings: BrokerSettings,
        clocks: Clocks,
        show: Callable[[], Shown],
        own_health: Health,
        heard: Callable[[Step, int], None],
    ) -> None:
        self.me, self._began, self.engine = me, began, engine
        self._disk, self._settings, self.clocks, self._show = disk, settings, clocks, show
        self._health, self._heard = own_health, heard
        self.shown = show()
        """By what others know this node, as of its last look."""
        self.own_copy = OwnCopy(me.node, me.http, began, disk, self._shown_over_http)
        self.copying = Copying(me.node, self.own_copy, began, engine, disk)
        self.witness = Witness(clocks.monotonic)
        self.replica: Replica | None = None
        """The replica that was opened last; None while it is replaced by a copy."""
        self.place = Place(0, 0, 0)
        self._candidate: Candidate | None = None
        self._found: Found | None = None

    @property
    def open_replica(self) -> Replica:
        """The replica, of which there is one."""
        assert self.replica is not None, "an act without a replica"
        return self.replica

    def open(self, _: Any = None) -> ReplicaOpened:
        """Open the replica; raise a `StoreError`, or OSError."""
        self._note_witness()
        replica = Replica.open(self._disk, self._settings, self.clocks.wall(), self._began.cluster)
        self.copying.opened(replica)
        self.replica, fold = replica, replica.fold
        self.place = self.place._replace(end=fold.end, next_offset=fold.next_offset)
        return ReplicaOpened(fold.epoch, fold.leads)

    def _note_witness(self) -> None:
        """Let the witness know what the replica, which is let go of, had read."""
        if self.replica is not None:
            self.witness.note(self.replica.fold)

    def require_kept(self, _: Any = None) -> HistoryKept:
        """See that the engine still has what was read; raise `Unknown` or `Halted`."""
        self.witness.require_kept(self.engine, self.open_replica.fold)
        return HistoryKept()

    def read(self, _: Any = None) -> ReadDone:
        """Take what the log has now, up to some MiB.

        Raise `Unknown`, `Halted`, `Trimmed`, `NoCluster`, or OSError where the replica is void.
        """
        replica = self.open_replica
        fold = replica.fold
        found = self.engine.read(fold.next_offset, READ_BYTES)
        read_ms = self.clocks.monotonic()
        require_next(self.engine, fold, found)
        for one in found:
            step = replica.take(one.offset, one.stored, self.clocks.wall())
            if step.outcome is Outcome.READ_AGAIN:
                break
            self._heard(step, self.clocks.monotonic())
        self.place = Place(fold.end, fold.next_offset, read_ms)
        self._health.pace.read(found, lambda: self.engine.bounds()[1])
        return ReadDone(
            len(found),
            fold.next_offset,
            fold.is_founded,
            replica.core.is_checkpoint_due or self.has_many_records(replica),
            fold.holdings.of(self.me.node) is not None,
            stepped_over(fold),
            self._health.unfit(),
        )

    def has_many_records(self, replica: Replica) -> bool:
        """Return whether so many records lie behind the checkpoint that they should not be kept for it."""
        shared = replica.core.shared_in_checkpoint
        since = 0 if shared is None else int(shared["next_offset"])
        return replica.fold.next_offset - since >= CHECKPOINT_RECORDS

    def checkpoint(self, _: Any = None) -> CheckpointDone:
        """Write a checkpoint; raise OSError."""
        self.open_replica.checkpoint(self.clocks.wall())
        return CheckpointDone()

    def complain(self, complaint: tuple[int, int]) -> ComplaintDone:
        """Say in the shared log that clients call, and that the leader of an epoch does not answer."""
        known = self.open_replica.fold.holdings.of(self.me.node)
        if known is not None:
            with suppress(Unknown, Refused):  # then it is said again
                self.engine.note(self.own_copy.complaint(known, *complaint))
        return ComplaintDone()

    def look(self, has_read_all: bool) -> LookDone:
        """Look after the copy, and tell of a new checkpoint once it is read back; raise `StoreDamaged`."""
        replica = self.open_replica
        self._health.has_room = health.has_room(self._disk, replica.core.segment_bytes)
        self.look_after_copy(replica, has_read_all)
        return LookDone(stepped_over(replica.fold))

    def look_after_copy(self, replica: Replica, has_read_all: bool) -> None:
        """Look at the certificate and the copy, also of a leader; raise `StoreDamaged`."""
        self.shown = self._show()
        replica.require_sound(has_read_all=has_read_all)
        self.copying.tell(replica, self.clocks.monotonic())

    # Standing.

    def append_epoch(self, holder: bytes) -> EpochAppended:
        """Append an EPOCH behind what was read; raise `Refused` or `Unknown`."""
        fold = self.open_replica.fold
        self.shown = self._show()
        me = self.me._replace(certificate=self.shown.certificate)
        self._candidate = candidate = Candidate(fold, holder, me._asdict())
        head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
        following = Head(candidate.epoch.epoch, holder, head.position)
        return EpochAppended(self.engine.append_if(head, [encode(candidate.epoch)], following))

    def compare(self, _: Any = None) -> Compared:
        """See whether the EPOCH is the newest; raise `Halted` where what was read before it is gone."""
        candidate = self._candidate
        assert candidate is not None, "a node compares the EPOCH that it has appended"
        again = None if candidate.reads_again is None else crc_at(self.engine, candidate.reads_again)
        return Compared(candidate.has_won(self.open_replica.fold, again))

    # Copies.

    def find_copies(self, _: Any = None) -> CopiesFound:
        """Read what the log says of copies; raise `Unknown`, or `TooOld`."""
        self._note_witness()
        self.replica = None
        self._found = found = self.copying.look()
        if found.epoch is None:
            return CopiesFound(0, {})
        return CopiesFound(found.epoch.epoch, found.epoch.facts)

    def fetch_copy(self, _: Any = None) -> CopyFetched:
        """Fetch one of these copies; raise `CopyRefused`, `Unknown`, or OSError."""
        assert self._found is not None, "copies are looked for before one is fetched"
        return CopyFetched(self.copying.get(self._found))

    def _shown_over_http(self) -> str:
        return self.shown.certificate if self.me.http.startswith("https:") else ""


def stepped_over(fold: Fold) -> SteppedOver:
    """Return what this node has read and stepped over."""
    return SteppedOver(fold.foreign_count, fold.repeated_count, fold.next_offset)


CARRIED_OUT: Final[dict[Act, Callable[[Acts, Any], Input]]] = {
    Act.OPEN: Acts.open,
    Act.REQUIRE_KEPT: Acts.require_kept,
    Act.READ: Acts.read,
    Act.CHECKPOINT: Acts.checkpoint,
    Act.COMPLAIN: Acts.complain,
    Act.LOOK: Acts.look,
    Act.APPEND_EPOCH: Acts.append_epoch,
    Act.COMPARE: Acts.compare,
    Act.FIND_COPIES: Acts.find_copies,
    Act.FETCH_COPY: Acts.fetch_copy,
}
"""What carries each act out, given its argument."""
