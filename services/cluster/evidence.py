"""What a node's copy proves against the shared log: a machine without I/O, clock or settings.

A copy holds what the cluster accepted, up to an end. The file `evidence` (`services.cluster.evidence_file`)
keeps that end, the chain there, and the record of a leader that was folded last. So an engine that has lost
records, or was restored from a backup, is told from one that has not been read so far yet. The bytes behind
the checkpoint stay where they are until the shared log has been read past the evidence and agrees.

    state      the copy                                      what ends it
    OPEN       has evidence that the fold has not reached    the evidence's record is read: AGREED, or HALT
    AGREED     holds nothing that the shared log lacks       -

Before anything is read on, `sharedlog.witness` looks for the record of the evidence in the engine: one that
is gone, or is another one, halts the node in time.

A flush that the shared log has accepted, against the bytes that lie in its place (`MEETS`):

    in place             below the accepted end                at or above it
    the same bytes       advance                               advance
    no sound record      write: a power cut has taken it       cut: no flush ended there
    another record       HALT: two histories                   set aside, then cut: it was never accepted

The record of the evidence, once the fold has taken it or stepped over it (`READS`):

    same record, end and chain     AGREED
    anything else                  HALT

The file `durable` of a store whose version kept no evidence says how far a follower had it accepted. The
first start makes evidence of that, with NO_RECORD: AGREED once the history is as long, and has met the bytes
in place.

To lead and to write new evidence takes AGREED. A copy of another node, or the whole shared log, that replaces
this one must cover the evidence (`REPLACES`):

    the other copy has read        chain at the evidence   record of the evidence   verdict
    past the evidence's record     same                    -                        take
                                   another                 -                        refuse
                                   forgotten               same                     take
                                   forgotten               anything else            take if the bytes agree
    not so far                     -                       same                     take if all are there
                                   -                       anything else            refuse

Cost: some comparisons a record, and of each flush behind a checkpoint one read of what lies in its place.
Weak spot: after a power cut the evidence may be a second old, or ahead of the bytes (`evidence_file`); where
the engine has lost records that only the lost second tells of, no node can know.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from sharedlog.errors import Halted
from sharedlog.fold import Fold, Position

NO_RECORD: Final = 0
"""In the place of the record where only an end is known: the log's first record is no leader's."""


class Evidence(NamedTuple):
    """What a node has seen accepted: `record` is that of a leader which the fold took last.

    `end` and `chain` are of the history once that was taken; `crc` is the CRC-32 of its bytes. With NO_RECORD
    only `end` counts.
    """

    cluster: bytes
    end: int
    chain: int
    epoch: int
    record: int
    crc: int

    @property
    def said(self) -> str:
        """Up to where that is."""
        of_record = f", with record {self.record} of the shared log" if self.record != NO_RECORD else ""
        return f"up to byte {self.end} of the log{of_record}"


class State(Enum):
    """How the copy compares with the shared log."""

    OPEN = "open"
    AGREED = "agreed"


class Look(Enum):
    """The record of the evidence, as the engine has it."""

    SAME = "same"
    ANOTHER = "another"
    GONE = "gone"
    TRIMMED = "trimmed"


class InPlace(Enum):
    """What lies where an accepted flush belongs."""

    EQUAL = "the same bytes"
    UNSOUND = "no sound record"
    OTHER = "another record"


class Trace(Enum):
    """What another copy, which has read past the evidence's record, knows of the chain there."""

    SAME = "same"
    ANOTHER = "another"
    FORGOTTEN = "forgotten"
    NOT_READ = "not read"


class Verdict(Enum):
    """What a node does."""

    ADVANCE = "advance"
    WRITE = "write"
    CUT = "cut"
    SET_ASIDE = "set aside"
    TAKE = "take"
    COMPARE = "compare"
    REFUSE = "refuse"
    HALT = "halt"


MEETS: Final = {
    (InPlace.EQUAL, True): Verdict.ADVANCE,
    (InPlace.EQUAL, False): Verdict.ADVANCE,
    (InPlace.UNSOUND, True): Verdict.WRITE,
    (InPlace.UNSOUND, False): Verdict.CUT,
    (InPlace.OTHER, True): Verdict.HALT,
    (InPlace.OTHER, False): Verdict.SET_ASIDE,
}
"""By what lies there, and whether it lies below the accepted end."""
REPLACES: Final = {
    **{(Trace.SAME, look): Verdict.TAKE for look in Look},
    **{(Trace.ANOTHER, look): Verdict.REFUSE for look in Look},
    **{(Trace.FORGOTTEN, look): Verdict.COMPARE for look in Look},
    **{(Trace.NOT_READ, look): Verdict.REFUSE for look in Look},
    (Trace.NOT_READ, Look.SAME): Verdict.TAKE,
    (Trace.FORGOTTEN, Look.SAME): Verdict.TAKE,
}


class Read(NamedTuple):
    """How far a fold has read: the end and chain of the history, and the offset of the record after it.

    `last` is the offset and the CRC-32 of the record that was taken last; None if none was.
    """

    end: int
    chain: int
    next_offset: int
    last: tuple[int, int] | None


class CopyProof:
    """What the copy of one node proves. Evidence of another cluster, as before a restore, proves nothing.

    `claimed` is what its file says, `checkpoint` where its fold begins, `trace` what that fold knows of the
    chain at the evidence. Raise `Halted`: the checkpoint is of another history.
    """

    def __init__(self, cluster: bytes, claimed: Evidence | None, checkpoint: Read, trace: Trace) -> None:
        self._cluster = cluster
        self.claimed = claimed if claimed is not None and claimed.cluster == cluster else None
        self.state = State.AGREED
        if self.claimed is not None:
            self.state = State.OPEN if _is_before(checkpoint, self.claimed) else State.AGREED
            if self.state is State.AGREED and (trace is Trace.ANOTHER or checkpoint.end < self.claimed.end):
                raise self._lost(checkpoint)

    @property
    def accepted_end(self) -> int:
        """The log offset up to which this node has seen the history accepted; 0 without evidence."""
        return 0 if self.claimed is None else self.claimed.end

    def meet(self, in_place: InPlace, offset: int) -> Verdict:
        """Return what to do about the bytes at `offset`, where an accepted flush differs from them first.

        Raise `Halted`: the copy and the shared log have two histories.
        """
        verdict = MEETS[in_place, offset < self.accepted_end]
        if verdict is Verdict.HALT:
            raise Halted(
                f"The shared log has another history than this copy: another record lies at byte {offset} of "
                f"the log, and up to byte {self.accepted_end} this node has read it accepted."
            )
        return verdict

    def read(self, read: Read) -> None:
        """Take in that the fold has taken a record; raise `Halted` where that is not the evidence's.

        Without a fault the fold is, behind that record, where it was when the evidence was written.
        """
        claimed = self.claimed
        if self.state is State.AGREED or claimed is None or _is_before(read, claimed):
            return
        is_whole = claimed.record != NO_RECORD
        if is_whole and read != Read(
            claimed.end, claimed.chain, claimed.record + 1, (claimed.record, claimed.crc)
        ):
            raise self._lost(read)
        self.state = State.AGREED

    def accepted(self, epoch: int, end: int, chain: int, led: tuple[int, int] | None) -> Evidence | None:
        """Return the evidence to write once the copy has all up to `end`; None if it tells nothing new.

        `led` is the offset and the CRC-32 of the newest record of a leader that the fold has taken.
        """
        if self.state is State.OPEN or led is None:
            return None
        if self.claimed is not None and led[0] <= self.claimed.record:
            return None
        assert end >= self.accepted_end, "the history of a cluster never gets shorter"
        self.claimed = Evidence(self._cluster, end, chain, epoch, *led)
        return self.claimed

    @property
    def may_lead(self) -> bool:
        """Whether the shared log was read past the evidence, and agrees."""
        return self.state is State.AGREED

    def _lost(self, read: Read) -> Halted:
        assert self.claimed is not None, "without evidence nothing is missed"
        return Halted(
            f"Record {self.claimed.record} of the shared log was read before, with byte {self.claimed.end} "
            f"of the log accepted, and is another one now, at byte {read.end}: the engine has lost what it "
            "had accepted."
        )


def _is_before(read: Read, claimed: Evidence) -> bool:
    """Return whether a fold has yet to reach the evidence."""
    return read.end < claimed.end if claimed.record == NO_RECORD else read.next_offset <= claimed.record


def traced(fold: Fold, claimed: Evidence | None) -> Trace:
    """Return what a fold, as a checkpoint keeps it, knows of the chain at the evidence."""
    if claimed is None or fold.next_offset <= claimed.record:
        return Trace.NOT_READ
    if claimed.record == NO_RECORD:
        return Trace.NOT_READ if fold.end < claimed.end else Trace.FORGOTTEN
    if fold.end < claimed.end:
        return Trace.ANOTHER
    return {True: Trace.SAME, False: Trace.ANOTHER, None: Trace.FORGOTTEN}[
        fold.knows(Position(claimed.end, claimed.chain))
    ]


def covers(claimed: Evidence | None, trace: Trace, look: Look) -> Verdict:
    """Return whether a copy may take the place of one with this evidence."""
    return Verdict.TAKE if claimed is None else REPLACES[trace, look]
