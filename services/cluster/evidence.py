"""Tracks the evidence for the accepted records in a node's copy.

This module performs no I/O. The accepted end is the log offset up to which a copy contains accepted history.
The `evidence` file (`services.cluster.evidence_file`) stores the accepted end, the chain at that offset, and
the last applied leader record. With this evidence, a node can detect that the engine has lost records or was
restored from a backup. The bytes after the checkpoint stay on disk until the node has read past the evidence
in the shared log without finding a contradiction.

    state      meaning                                       transition
    OPEN       the fold has not reached the evidence         AGREED, or HALT, when the evidence record is read
    AGREED     no record of the copy is lost in the log      -

Before a node continues, `sharedlog.witness` looks up the evidence record in the engine. If the record is
still missing or still differs after `witness.LOST_MS`, the node halts.

Each accepted flush is compared with the bytes on disk at the same offset (`FLUSH_VERDICTS`):

    on disk              below the accepted end                at or above the accepted end
    identical bytes      advance                               advance
    no valid record      write: lost in a power failure        cut: no flush ended there
    different record     HALT: the histories differ            set aside, then cut: never accepted

The state is set once the `Fold` has applied or skipped the evidence record (`CopyProof.check_fold`):

    same record, end and chain     AGREED
    anything else                  HALT

In the state OPEN, a node must neither lead nor write new evidence. A node's copy may be replaced only if the
replacement covers the evidence (`REPLACEMENT_VERDICTS`). The replacement is another node's copy or the whole
shared log:

    last record of the other copy    chain at the evidence   evidence record   verdict
    after the evidence record        same                    -                 take
                                     another                 -                 refuse
                                     forgotten               same              take
                                     forgotten               any other         take if the bytes are equal
    before the evidence record       -                       same              take if no record is missing
                                     -                       any other         refuse

Cost: a few comparisons per record, and one disk read per flush after a checkpoint. Limitation: after a power
failure, the evidence may be about one second old, or its accepted end may be beyond the end of the log
(`evidence_file`). If records from that last second are lost, the loss cannot be detected.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from sharedlog.errors import Halted
from sharedlog.fold import Fold, Position


class Evidence(NamedTuple):
    """The accepted history that a node has read.

    `record` is the offset of the last applied leader record, and `crc` is its CRC-32. `end` and `chain`
    describe the history up to and including that record.
    """

    cluster: bytes
    end: int
    chain: int
    epoch: int
    record: int
    crc: int

    @property
    def description(self) -> str:
        """A phrase for error messages that describes the evidence."""
        return f"up to byte {self.end} of the log, with record {self.record} of the shared log"


class ProofState(Enum):
    """Whether the evidence for a copy agrees with the shared log."""

    OPEN = "open"
    AGREED = "agreed"


class RecordLookup(Enum):
    """The result of looking up the evidence record in the engine."""

    SAME = "same"
    ANOTHER = "another"
    GONE = "gone"
    TRIMMED = "trimmed"


class DiskComparison(Enum):
    """The result of comparing an accepted flush with the bytes on disk."""

    EQUAL = "the same bytes"
    UNSOUND = "no sound record"
    OTHER = "another record"


class ChainComparison(Enum):
    """The result of comparing the evidence with the history of another copy."""

    SAME = "same"
    ANOTHER = "another"
    FORGOTTEN = "forgotten"
    NOT_READ = "not read"


class EvidenceVerdict(Enum):
    """A node's reaction to a comparison with the evidence."""

    ADVANCE = "advance"
    WRITE = "write"
    CUT = "cut"
    SET_ASIDE = "set aside"
    TAKE = "take"
    COMPARE = "compare"
    REFUSE = "refuse"
    HALT = "halt"


FLUSH_VERDICTS: Final = {
    (DiskComparison.EQUAL, True): EvidenceVerdict.ADVANCE,
    (DiskComparison.EQUAL, False): EvidenceVerdict.ADVANCE,
    (DiskComparison.UNSOUND, True): EvidenceVerdict.WRITE,
    (DiskComparison.UNSOUND, False): EvidenceVerdict.CUT,
    (DiskComparison.OTHER, True): EvidenceVerdict.HALT,
    (DiskComparison.OTHER, False): EvidenceVerdict.SET_ASIDE,
}
"""The verdict for each comparison result. The flag is whether the offset is below the accepted end."""
REPLACEMENT_VERDICTS: Final = {
    **{(ChainComparison.SAME, look): EvidenceVerdict.TAKE for look in RecordLookup},
    **{(ChainComparison.ANOTHER, look): EvidenceVerdict.REFUSE for look in RecordLookup},
    **{(ChainComparison.FORGOTTEN, look): EvidenceVerdict.COMPARE for look in RecordLookup},
    **{(ChainComparison.NOT_READ, look): EvidenceVerdict.REFUSE for look in RecordLookup},
    (ChainComparison.NOT_READ, RecordLookup.SAME): EvidenceVerdict.TAKE,
    (ChainComparison.FORGOTTEN, RecordLookup.SAME): EvidenceVerdict.TAKE,
}


class FoldProgress(NamedTuple):
    """The end of a `Fold`'s history, the chain at that end, and the offset of the next record.

    `last` contains the offset and CRC-32 of the last applied record, or is None if there is none.
    """

    end: int
    chain: int
    next_offset: int
    last: tuple[int, int] | None


class CopyProof:
    """The evidence for a node's copy, and whether it agrees with the shared log.

    `claimed` is the stored evidence, and `checkpoint` is the progress of the `Fold` at the checkpoint.
    `trace` is the result of comparing the evidence with the `Fold`. Evidence from another cluster, such as
    the one before a restore, is ignored. Raise `Halted` if the checkpoint belongs to a different history.
    """

    def __init__(
        self, cluster: bytes, claimed: Evidence | None, checkpoint: FoldProgress, trace: ChainComparison
    ) -> None:
        self._cluster = cluster
        self.claimed = claimed if claimed is not None and claimed.cluster == cluster else None
        self.state = ProofState.AGREED
        if self.claimed is not None:
            self.state = ProofState.OPEN if _is_before(checkpoint, self.claimed) else ProofState.AGREED
            if self.state is ProofState.AGREED and (
                trace is ChainComparison.ANOTHER or checkpoint.end < self.claimed.end
            ):
                raise self._history_lost_error(checkpoint)

    @property
    def accepted_end(self) -> int:
        """The accepted end, or 0 if there is no evidence."""
        return 0 if self.claimed is None else self.claimed.end

    def verdict_at(self, in_place: DiskComparison, offset: int) -> EvidenceVerdict:
        """Return the verdict for `offset`, where an accepted flush and the log files first differ.

        Raise `Halted` if the copy and the shared log have different histories.
        """
        verdict = FLUSH_VERDICTS[in_place, offset < self.accepted_end]
        if verdict is EvidenceVerdict.HALT:
            raise Halted(
                f"The shared log has another history than this copy: another record lies at byte {offset} of "
                f"the log, and up to byte {self.accepted_end} this node has read it accepted."
            )
        return verdict

    def check_fold(self, read: FoldProgress) -> None:
        """Compare the `Fold` with the evidence. Raise `Halted` if they contradict each other.

        Call this method after applying each record. If no records have been lost, the `Fold` matches the
        evidence once it has applied the evidence record.
        """
        claimed = self.claimed
        if self.state is ProofState.AGREED or claimed is None or _is_before(read, claimed):
            return
        if read != FoldProgress(
            claimed.end, claimed.chain, claimed.record + 1, (claimed.record, claimed.crc)
        ):
            raise self._history_lost_error(read)
        self.state = ProofState.AGREED

    def new_evidence(self, epoch: int, end: int, chain: int, led: tuple[int, int] | None) -> Evidence | None:
        """Return new evidence for a copy with all bytes up to `end`, or None if nothing has changed.

        `led` contains the offset and CRC-32 of the newest leader record in the `Fold`.
        """
        if self.state is ProofState.OPEN or led is None:
            return None
        if self.claimed is not None and led[0] <= self.claimed.record:
            return None
        assert end >= self.accepted_end, "the history of a cluster never gets shorter"
        self.claimed = Evidence(self._cluster, end, chain, epoch, *led)
        return self.claimed

    @property
    def can_lead(self) -> bool:
        """Whether the node may lead. Any existing evidence must be confirmed first."""
        return self.state is ProofState.AGREED

    def _history_lost_error(self, read: FoldProgress) -> Halted:
        assert self.claimed is not None, "without evidence nothing is missed"
        return Halted(
            f"Record {self.claimed.record} of the shared log was read before, with byte {self.claimed.end} "
            f"of the log accepted, and is another one now, at byte {read.end}: the engine has lost what it "
            "had accepted."
        )


def _is_before(read: FoldProgress, claimed: Evidence) -> bool:
    """Return whether the `Fold` has not yet read the evidence record."""
    return read.next_offset <= claimed.record


def compare_chain(fold: Fold, claimed: Evidence | None) -> ChainComparison:
    """Compare the evidence with the history of a `Fold` restored from a checkpoint."""
    if claimed is None or fold.next_offset <= claimed.record:
        return ChainComparison.NOT_READ
    if fold.end < claimed.end:
        return ChainComparison.ANOTHER
    return {True: ChainComparison.SAME, False: ChainComparison.ANOTHER, None: ChainComparison.FORGOTTEN}[
        fold.has_position(Position(claimed.end, claimed.chain))
    ]


def replacement_verdict(
    claimed: Evidence | None, trace: ChainComparison, look: RecordLookup
) -> EvidenceVerdict:
    """Return whether a copy with the evidence `claimed` may be replaced.

    The replacement is another copy or the whole shared log.
    """
    return EvidenceVerdict.TAKE if claimed is None else REPLACEMENT_VERDICTS[trace, look]
