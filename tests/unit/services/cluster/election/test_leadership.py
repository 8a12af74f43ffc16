"""What a node reads of the leader: also where a record says again what one before it has said."""

from __future__ import annotations

from typing import Any

import pytest

from services.cluster.election.candidacy_timer import LEADER_TIMEOUT_MS, RANK_DELAY_MS
from services.cluster.election.leadership import Leadership
from services.cluster.identity import Member
from sharedlog.fold import Outcome, Step
from sharedlog.record import CHAIN_AT_GENESIS, Kind, SharedRecord, encode_facts

LEADER, OTHER = Member("a", "h:1", "http://h:2"), Member("b", "h:3", "http://h:4")


def record(kind: Kind, facts: dict[str, Any]) -> Step:
    outcome = Outcome.NEW_EPOCH if kind == Kind.EPOCH else Outcome.ALIVE
    holder = b"who leads epoch1"
    return Step(
        outcome, SharedRecord(b"one cluster's id", kind, 1, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts))
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("me", "facts", "candidacy_due_ms"),
    [
        (LEADER, {}, LEADER_TIMEOUT_MS),
        (OTHER, {}, RANK_DELAY_MS),
        (LEADER, {"to": "b"}, LEADER_TIMEOUT_MS),
        (OTHER, {"to": "b"}, 0),
    ],
)
def test_who_leaves_lets_another_stand_first_however_often_it_says_so(
    me: Member, facts: dict[str, str], candidacy_due_ms: int, times: int
) -> None:
    read = Leadership(me, 0)
    read.apply_step(record(Kind.EPOCH, LEADER._asdict()), 0)
    for _ in range(times):
        read.apply_step(record(Kind.BEAT, {"leaves": True} | facts), 0)
    assert read.leader is None
    assert read.candidacy_timer.candidacy_due_ms(read.rank) == candidacy_due_ms
