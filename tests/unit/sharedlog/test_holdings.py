"""Tests the list of nodes that have a copy of the store, and the records that can be trimmed."""

from __future__ import annotations

import json

from sharedlog.fold import Fold, Outcome
from sharedlog.holdings import NODES_MAX, Holding, Holdings, Unreadable
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from tests.genesis import genesis_of

CLUSTER = b"one cluster's id"
HOLDER = b"who leads epoch1"


def test_the_log_is_trimmed_below_what_every_node_has_and_only_while_two_have_a_copy() -> None:
    holdings = Holdings()
    assert holdings.first_needed_record == 0
    holdings.apply_record(Holding(50, 4096).facts("a"))
    assert holdings.first_needed_record == 0, "one machine alone"
    holdings.apply_record(Holding(40).facts("b"))
    assert holdings.first_needed_record == 0, "a node that is about to copy has none"
    holdings.apply_record(Holding(45, 2048).facts("b"))
    assert holdings.first_needed_record == 45
    holdings.apply_record(Holding(10).facts("c"))
    assert holdings.first_needed_record == 10, "one that copies holds the rest"
    holdings.remove_node("c")
    holdings.remove_node("nobody")
    assert holdings.first_needed_record == 45
    holdings.apply_record(Holding(7, 100).facts("b"))
    assert holdings.first_needed_record == 7, "what a node said last counts"
    assert Holdings.thaw(json.loads(json.dumps(holdings.freeze()))).all() == holdings.all()


def test_copies_are_those_of_others_that_reach_the_log_the_newest_first() -> None:
    holdings = Holdings()
    for node, next_record in (("a", 5), ("b", 9), ("c", 7), ("d", 3)):
        holdings.apply_record(Holding(next_record, 100, f"http://{node}", "s").facts(node))
    holdings.apply_record(Holding(20).facts("e"))
    assert [node for node, _ in holdings.copies("b", 4)] == ["c", "a"]
    assert holdings.copies("b", 8) == []


def test_more_nodes_than_are_known_are_not_waited_for() -> None:
    holdings = Holdings()
    for number in range(NODES_MAX + 5):
        holdings.apply_record(Holding(100 + number, 1).facts(f"n{number}"))
    assert len(holdings.all()) == NODES_MAX
    holdings.apply_record(Holding(7, 1).facts("n0"))
    assert holdings.first_needed_record == 7


def test_a_fold_knows_what_nodes_have_told_and_a_checkpoint_keeps_it() -> None:
    fold = Fold(CLUSTER)

    def take(kind: Kind, epoch: int, holder: bytes, facts: dict[str, object]) -> Outcome:
        record = SharedRecord(CLUSTER, kind, epoch, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts))
        return fold.apply_record(fold.next_offset, encode(record)).outcome

    fold.apply_record(0, encode(genesis_of(CLUSTER)))
    take(Kind.EPOCH, 1, HOLDER, {"node": "a"})
    assert take(Kind.CHECKPOINT, 0, NOBODY, Holding(1, 0, "u", "s").facts("a")) is Outcome.NOTED
    assert take(Kind.HOLD, 0, NOBODY, Holding(0).facts("b")) is Outcome.NOTED
    assert fold.holdings.of("a") == Holding(1, 0, "u", "s")
    assert Fold.thaw(json.loads(json.dumps(fold.freeze()))).holdings.all() == fold.holdings.all()
    assert take(Kind.BEAT, 0, HOLDER, {"forget": "a"}) is Outcome.DEAD
    assert fold.holdings.of("a") is not None, "only the leader forgets a node"
    assert take(Kind.BEAT, 1, HOLDER, {"forget": "b", "clock_ms": 1}) is Outcome.ALIVE
    assert fold.holdings.of("b") is None


def test_a_complaint_stands_beside_what_a_node_holds_and_outlives_its_next_word() -> None:
    holdings = Holdings()
    held = Holding(5, 100, "http://a", "s")
    holdings.apply_record(held.facts("a") | {"unreached": [3, 1]})
    assert holdings.of("a") == held
    assert holdings.unreached == {"a": (3, 1)}
    holdings.apply_record(Holding(6, 200, "http://a", "s").facts("a"))
    assert holdings.unreached == {"a": (3, 1)}
    holdings.apply_record(held.facts("a") | {"unreached": [3, 2]})
    assert holdings.unreached == {"a": (3, 2)}
    assert Holdings.thaw(holdings.freeze()).unreached == {}


def test_a_node_that_cannot_read_on_says_so_until_it_says_what_it_holds() -> None:
    holdings = Holdings()
    held = Holding(3, 300, "http://b")
    holdings.apply_record(held.facts("b") | {"unreadable": [7, 700, "Record 7 is missing."]})
    assert holdings.unreadable == {"b": Unreadable(7, 700, "Record 7 is missing.")}
    assert holdings.of("b") == held
    holdings.apply_record(Holding(9, 900, "http://b").facts("b"))
    assert holdings.unreadable == {}
    holdings.apply_record(held.facts("b") | {"unreadable": [7, 700, "Record 7 is missing."]})
    holdings.remove_node("b")
    assert holdings.unreadable == {}
