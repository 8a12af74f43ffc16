"""What a copy proves: the machine against an oracle that knows both histories byte by byte."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cluster import evidence
from services.cluster.evidence import (
    ChainComparison,
    CopyProof,
    DiskComparison,
    Evidence,
    EvidenceVerdict,
    FoldProgress,
    ProofState,
    RecordLookup,
)
from sharedlog.errors import Halted

CLUSTER = b"one cluster's id"
EMPTY_HEAD = FoldProgress(0, 0, 0, None)


def history(values: list[int]) -> list[FoldProgress]:
    """What a fold is behind each record of a log; 0 stands for a BEAT, another value for so many bytes."""
    reads, end, chain = [], 0, 0
    for offset, value in enumerate(values, 1):  # record 0 is the GENESIS
        end, chain = end + value, hash((chain, value)) & 0xFFFF if value else chain
        reads.append(FoldProgress(end, chain, offset + 1, (offset, hash((chain, value)) & 0xFFFF)))
    return reads


def written(values: list[int], at: int) -> list[int]:
    """The bytes that records of a log write, up to one of them."""
    return [value for value in values[: at + 1] if value]


def claim_of(read: FoldProgress) -> Evidence:
    assert read.last is not None
    return Evidence(CLUSTER, read.end, read.chain, 1, *read.last)


logs = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(logs, st.data())
def test_a_copy_agrees_with_a_log_that_has_all_that_it_had_read_and_with_no_other(
    before: list[int], data: st.DataObject
) -> None:
    had = history(before)
    kept = data.draw(st.integers(0, len(before)))
    now = before[:kept] + data.draw(logs)
    at = data.draw(st.integers(0, len(before) - 1))
    begins = data.draw(st.integers(0, min(at, kept)))
    claimed = claim_of(had[at])
    proof = CopyProof(CLUSTER, claimed, had[begins - 1] if begins else EMPTY_HEAD, ChainComparison.NOT_READ)
    # A log is the same up to a record if that is, and the bytes are: BEATs before it may lie elsewhere.
    is_kept = now[at : at + 1] == before[at : at + 1] and written(now, at) == written(before, at)
    said = ""
    try:
        for read in history(now)[begins:]:
            proof.check_fold(read)
    except Halted as error:
        said = str(error)
    has_reached = len(now) > at
    assert proof.can_lead is (is_kept and has_reached), "a copy may lead that the log does not agree with"
    assert bool(said) is (has_reached and not is_kept), "another history in silence"
    assert not said or f"byte {claimed.end} of the log accepted" in said


@given(logs, st.integers(0, 11), st.integers(0, 11))
def test_evidence_only_grows_and_is_not_written_before_the_log_agrees(
    values: list[int], at: int, begins: int
) -> None:
    reads = history(values)
    at = min(at, len(reads) - 1)
    begins = min(begins, len(reads))
    claimed = claim_of(reads[at])
    checkpoint = reads[begins - 1] if begins else EMPTY_HEAD
    proof = CopyProof(
        CLUSTER, claimed, checkpoint, ChainComparison.SAME if begins > at else ChainComparison.NOT_READ
    )
    written = [claimed]
    for read in reads[begins:]:
        proof.check_fold(read)
        fresh = proof.new_evidence(1, read.end, read.chain, read.last)
        if fresh is not None:
            written.append(fresh)
    assert written == sorted(written, key=lambda one: one.record)
    assert len({one.record for one in written}) == len(written)
    assert written[-1] == (
        claim_of(reads[-1]) if begins <= len(reads) - 1 or at == len(reads) - 1 else claimed
    )


@given(st.integers(0, 100), st.integers(0, 100), st.sampled_from(DiskComparison))
def test_bytes_below_the_accepted_end_are_never_cut(end: int, offset: int, in_place: DiskComparison) -> None:
    proof = CopyProof(CLUSTER, Evidence(CLUSTER, end, 7, 1, 9, 1), EMPTY_HEAD, ChainComparison.NOT_READ)
    if (in_place, offset < end) == (DiskComparison.OTHER, True):
        with pytest.raises(Halted, match=rf"at byte {offset} .* byte {end} this node has read it accepted\."):
            proof.verdict_at(in_place, offset)
        return
    verdict = proof.verdict_at(in_place, offset)
    assert offset >= end or verdict in (EvidenceVerdict.ADVANCE, EvidenceVerdict.WRITE)
    assert in_place is not DiskComparison.EQUAL or verdict is EvidenceVerdict.ADVANCE
    assert in_place is not DiskComparison.OTHER or verdict is EvidenceVerdict.SET_ASIDE, (
        "what was sound is kept apart"
    )


def test_every_case_has_its_row() -> None:
    assert set(evidence.FLUSH_VERDICTS) == set(product(DiskComparison, (True, False)))
    assert set(evidence.REPLACEMENT_VERDICTS) == set(product(ChainComparison, RecordLookup))


@pytest.mark.parametrize(("trace", "look"), list(product(ChainComparison, RecordLookup)))
def test_only_a_copy_that_brings_back_the_evidence_is_taken(
    trace: ChainComparison, look: RecordLookup
) -> None:
    claimed = Evidence(CLUSTER, 5, 7, 1, 9, 1)
    assert evidence.replacement_verdict(None, trace, look) is EvidenceVerdict.TAKE
    brings_it = trace is ChainComparison.SAME or (
        trace in (ChainComparison.NOT_READ, ChainComparison.FORGOTTEN) and look is RecordLookup.SAME
    )
    unsure = EvidenceVerdict.COMPARE if trace is ChainComparison.FORGOTTEN else EvidenceVerdict.REFUSE
    assert evidence.replacement_verdict(claimed, trace, look) is (
        EvidenceVerdict.TAKE if brings_it else unsure
    )


def test_evidence_of_the_cluster_before_a_restore_proves_nothing() -> None:
    claimed = Evidence(b"another's 16 byt", 5, 7, 1, 9, 1)
    proof = CopyProof(CLUSTER, claimed, EMPTY_HEAD, ChainComparison.NOT_READ)
    assert proof.state is ProofState.AGREED
    assert proof.accepted_end == 0


@pytest.mark.parametrize("checkpoint", [FoldProgress(4, 1, 10, None), FoldProgress(6, 1, 10, None)])
def test_a_checkpoint_of_another_history_halts(checkpoint: FoldProgress) -> None:
    with pytest.raises(Halted, match="Record 9"):
        CopyProof(CLUSTER, Evidence(CLUSTER, 5, 7, 1, 9, 1), checkpoint, ChainComparison.ANOTHER)
