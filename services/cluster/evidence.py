"""The evidence of accepted records that a node's copy carries: a machine without I/O, clock or settings.

A copy holds the accepted history up to an end. The file `evidence` (`services.cluster.evidence_file`) keeps
that end, the chain there, and the last record of a leader that was folded. With it a node distinguishes an
engine that has lost records, or was restored from a backup, from one that it has not read that far yet. The
bytes after the checkpoint remain until the shared log has been read past the evidence and agrees.

    state      the copy                                      what ends it
    OPEN       has evidence that the fold has not reached    the evidence's record is read: AGREED, or HALT
    AGREED     holds nothing that the shared log lacks       -

Before reading continues, `sharedlog.witness` looks up the record of the evidence in the engine: if it is
missing or replaced, the node halts after some time.

An accepted flush, compared with the bytes on disk at its place (`MEETS`):

    on disk              below the accepted end                at or above it
    the same bytes       advance                               advance
    no sound record      write: lost in a power cut            cut: no flush ended there
    another record       HALT: two histories                   set aside, then cut: it was never accepted

The record of the evidence, once the fold has taken or skipped it (`CopyProof.read`):

    same record, end and chain     AGREED
    anything else                  HALT

Stores of versions without evidence have a file `durable` with the accepted end of a follower. The first start
converts it to evidence with NO_RECORD: AGREED once the history is as long, and was compared with the bytes on
disk.

AGREED is required to lead and to write new evidence. Another node's copy, or the whole shared log, may
replace this copy only if it covers the evidence (`REPLACES`):

    the other copy has read        chain at the evidence   record of the evidence   verdict
    past the evidence's record     same                    -                        take
                                   another                 -                        refuse
                                   forgotten               same                     take
                                   forgotten               anything else            take if the bytes agree
    not so far                     -                       same                     take if all are there
                                   -                       anything else            refuse

Cost: some comparisons a record, and one read of the bytes on disk for each flush after a checkpoint. Weak
spot: after a power cut the evidence may be a second old, or ahead of the bytes (`evidence_file`); a loss of
records that only that second covers cannot be detected.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from sharedlog.errors import Halted
from sharedlog.fold import Fold, Position

NO_RECORD: Final = 0
"""The record number of evidence that has only an end: the first record of the log is not a leader's."""


class Evidence(NamedTuple):
    """The accepted history as a node knows it: `record` is the last record of a leader that was folded.

    `end` and `chain` are those of the history after that record; `crc` is the CRC-32 of its bytes. With
    NO_RECORD only `end` counts.
    """

    cluster: bytes
    end: int
    chain: int
    epoch: int
    record: int
    crc: int

    @property
    def said(self) -> str:
        """The position, as a part of a sentence."""
        of_record = f", with record {self.record} of the shared log" if self.record != NO_RECORD else ""
        return f"up to byte {self.end} of the log{of_record}"


class State(Enum):
    """The relation of the copy to the shared log."""

    OPEN = "open"
    AGREED = "agreed"


class Look(Enum):
    """The record of the evidence, as found in the engine."""

    SAME = "same"
    ANOTHER = "another"
    GONE = "gone"
    TRIMMED = "trimmed"


class InPlace(Enum):
    """The bytes on disk where an accepted flush belongs."""

    EQUAL = "the same bytes"
    UNSOUND = "no sound record"
    OTHER = "another record"


class Trace(Enum):
    """The chain at the evidence, as known to another copy that has read past its record."""

    SAME = "same"
    ANOTHER = "another"
    FORGOTTEN = "forgotten"
    NOT_READ = "not read"


class Verdict(Enum):
    """The action of a node."""

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
"""By the bytes on disk, and whether they are below the accepted end."""
REPLACES: Final = {
    **{(Trace.SAME, look): Verdict.TAKE for look in Look},
    **{(Trace.ANOTHER, look): Verdict.REFUSE for look in Look},
    **{(Trace.FORGOTTEN, look): Verdict.COMPARE for look in Look},
    **{(Trace.NOT_READ, look): Verdict.REFUSE for look in Look},
    (Trace.NOT_READ, Look.SAME): Verdict.TAKE,
    (Trace.FORGOTTEN, Look.SAME): Verdict.TAKE,
}


class Read(NamedTuple):
    """The progress of a fold: the end and chain of the history, and the offset of the next record.

    `last` is the offset and the CRC-32 of the last record taken; None if there is none.
    """

    end: int
    chain: int
    next_offset: int
    last: tuple[int, int] | None


class CopyProof:
    """The evidence of one node's copy. Evidence of another cluster, as before a restore, is ignored.

    `claimed` is the evidence in the file, `checkpoint` the start of the fold, `trace` the fold's knowledge of
    the chain at the evidence. Raise `Halted` if the checkpoint is of another history.
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
        """The log offset up to which the history is known to be accepted; 0 without evidence."""
        return 0 if self.claimed is None else self.claimed.end

    def meet(self, in_place: InPlace, offset: int) -> Verdict:
        """Return the action for the bytes at `offset`, the first difference from an accepted flush.

        Raise `Halted` if the copy and the shared log have two histories.
        """
        verdict = MEETS[in_place, offset < self.accepted_end]
        if verdict is Verdict.HALT:
            raise Halted(
                f"The shared log has another history than this copy: another record lies at byte {offset} of "
                f"the log, and up to byte {self.accepted_end} this node has read it accepted."
            )
        return verdict

    def read(self, read: Read) -> None:
        """Check the fold after it has taken a record; raise `Halted` if it contradicts the evidence.

        In a sound log the fold is then in the same state as when the evidence was written.
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
        """Return the evidence to write once the copy has all up to `end`; None if there is no news.

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
    """Return whether a fold has not yet reached the evidence."""
    return read.end < claimed.end if claimed.record == NO_RECORD else read.next_offset <= claimed.record


def traced(fold: Fold, claimed: Evidence | None) -> Trace:
    """Return the chain at the evidence, compared with a fold from a checkpoint."""
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
    """Return whether a copy may replace one with this evidence."""
    return Verdict.TAKE if claimed is None else REPLACES[trace, look]
