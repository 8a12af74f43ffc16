"""Tracks the end of the accepted part of the log in a node's store.

This module performs no I/O. The accepted end of a store is the log offset up to which all records are known
to be accepted. The `evidence` file (`services.cluster.evidence_file`) stores the accepted end and the chain
at that offset. It also stores the offset and the CRC-32 of the last applied leader record, called the
evidence record. This evidence allows a node to detect that the engine has lost records or was restored from a
backup. The log bytes after the checkpoint stay on disk until the node has read the shared log up to the
evidence record and has found no contradiction.

    state      meaning                                       transition
    OPEN       the evidence record has not been read yet     AGREED or HALT, when the evidence record is read
    AGREED     the shared log has all records of the copy    -

Before a node continues to read the shared log, `sharedlog.witness` looks up the evidence record in the
engine. The node halts if the record is still missing or different after `witness.LOST_MS`.

The node compares each accepted flush with the bytes on disk at the same offset (`FLUSH_VERDICTS`):

    on disk              below the accepted end                at or above the accepted end
    identical bytes      advance                               advance
    no valid record      write: lost in a power failure        truncate (CUT): no flush ended there
    different record     HALT: the histories differ            set aside, then truncate: never accepted

The state changes when the `Fold` has applied or skipped the evidence record (`CopyProof.check_fold`):

    same record, end and chain     AGREED
    anything else                  HALT

In the state OPEN, a node must neither lead nor write new evidence. The store of a node may be replaced only
if the replacement covers the evidence (`REPLACEMENT_VERDICTS`). The replacement is a copy from another node
or the whole shared log:

    last record of the other copy    chain at the evidence   evidence record   verdict
    after the evidence record        same                    -                 take
                                     another                 -                 refuse
                                     forgotten               same              take
                                     forgotten               any other         take if the bytes are equal
    before the evidence record       -                       same              take if no record is missing
                                     -                       any other         refuse

Cost: a few comparisons per record, and one disk read per flush after the checkpoint. Limitation: after a
power failure, the evidence may be about one second old, or the accepted end may be beyond the end of the log
files (`evidence_file`). A loss of records from that last second cannot be detected.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from sharedlog.errors import Halted
from sharedlog.fold import Fold, Position


class Evidence(NamedTuple):
    """The part of the log that a node knows to be accepted.

    The fields `record` and `crc` are the shared log offset and the CRC-32 of the last applied leader record.
    The fields `end` and `chain` are the end of the log and the chain after that record.
    """

    cluster: bytes
    end: int
    chain: int
    epoch: int
    record: int
    crc: int

    @property
    def description(self) -> str:
        """A description of the evidence for error messages."""
        return f"up to byte {self.end} of the log, with record {self.record} of the shared log"


class ProofState(Enum):
    """The state of the comparison between the evidence and the shared log."""

    OPEN = "open"
    AGREED = "agreed"


class RecordLookup(Enum):
    """The result of a lookup of the evidence record in the engine."""

    SAME = "same"
    ANOTHER = "another"
    GONE = "gone"
    TRIMMED = "trimmed"


class DiskComparison(Enum):
    """The result of a comparison between an accepted flush and the bytes on disk."""

    EQUAL = "the same bytes"
    UNSOUND = "no sound record"
    OTHER = "another record"


class ChainComparison(Enum):
    """The result of a comparison between the evidence and the history of a copy."""

    SAME = "same"
    ANOTHER = "another"
    FORGOTTEN = "forgotten"
    NOT_READ = "not read"


class EvidenceVerdict(Enum):
    """The action that a node takes after a comparison with the evidence."""

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
"""The verdict for each comparison result. The flag is true for offsets below the accepted end."""
REPLACEMENT_VERDICTS: Final = {
    **{(ChainComparison.SAME, look): EvidenceVerdict.TAKE for look in RecordLookup},
    **{(ChainComparison.ANOTHER, look): EvidenceVerdict.REFUSE for look in RecordLookup},
    **{(ChainComparison.FORGOTTEN, look): EvidenceVerdict.COMPARE for look in RecordLookup},
    **{(ChainComparison.NOT_READ, look): EvidenceVerdict.REFUSE for look in RecordLookup},
    (ChainComparison.NOT_READ, RecordLookup.SAME): EvidenceVerdict.TAKE,
    (ChainComparison.FORGOTTEN, RecordLookup.SAME): EvidenceVerdict.TAKE,
}


class FoldProgress(NamedTuple):
    """The end of the log in a `Fold`, the chain at that end, and the offset of the next record.

    The field `last` contains the offset and CRC-32 of the last applied record, or is None if no record has
    been applied.
    """

    end: int
    chain: int
    next_offset: int
    last: tuple[int, int] | None


class CopyProof:
    """The evidence for a node's store, and the state of its comparison with the shared log.

    The argument `claimed` is the stored evidence, and `checkpoint` is the progress of the `Fold` at the
    checkpoint. The argument `trace` is the result of `compare_chain` for that `Fold`. Evidence from another
    cluster, such as the cluster before a restore, is ignored. The constructor raises `Halted` if the
    checkpoint contradicts the evidence.
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
        """Return the verdict for an accepted flush whose first difference from the log files is at `offset`.

        Raise `Halted` if the log files and the shared log have different histories.
        """
        verdict = FLUSH_VERDICTS[in_place, offset < self.accepted_end]
        if verdict is EvidenceVerdict.HALT:
            raise Halted(
                f"The shared log has another history than this copy: another record lies at byte {offset} of "
                f"the log, and up to byte {self.accepted_end} this node has read it accepted."
            )
        return verdict

    def check_fold(self, read: FoldProgress) -> None:
        """Compare the `Fold` with the evidence. Raise `Halted` if the `Fold` contradicts the evidence.

        Call this method after each applied record. If no record has been lost, the `Fold` matches the
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
        """Return new evidence for a log that ends at `end`, or None if the evidence has not changed.

        The tuple `led` contains the offset and CRC-32 of the newest leader record in the `Fold`. Return None
        in the state OPEN.
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
        """Whether the node may lead.

        A node must not lead before the shared log has confirmed its evidence.
        """
        return self.state is ProofState.AGREED

    def _history_lost_error(self, read: FoldProgress) -> Halted:
        assert self.claimed is not None, "without evidence nothing is missed"
        return Halted(
            f"Record {self.claimed.record} of the shared log was read before, with byte {self.claimed.end} "
            f"of the log accepted, and is another one now, at byte {read.end}: the engine has lost what it "
            "had accepted."
        )


def _is_before(read: FoldProgress, claimed: Evidence) -> bool:
    """Return whether the evidence record is still unread."""
    return read.next_offset <= claimed.record


def compare_chain(fold: Fold, claimed: Evidence | None) -> ChainComparison:
    """Compare the evidence with the history of a `Fold` that was restored from a checkpoint."""
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
    """Return the verdict on replacing a store that has the evidence `claimed`.

    The replacement is a copy from another node or the whole shared log.
    """
    return EvidenceVerdict.TAKE if claimed is None else REPLACEMENT_VERDICTS[trace, look]
