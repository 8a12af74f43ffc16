"""Tests that facts survive encoding and decoding, and that each fact and each record kind is handled."""

from __future__ import annotations

import re
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.applied_limits import OLDEST
from commitlog.facts import acks, lease_records
from commitlog.facts.facts import (
    TOPICS,
    CheckBackSent,
    EpochBegun,
    Fact,
    FiltersRemoved,
    GroupJoined,
    GroupLeft,
    HalfEnded,
    HalfStored,
    LateEndRequested,
    LeaseChanged,
    LogCut,
    MessagesFinished,
    PolicySet,
    RulesRemoved,
    RulesSet,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleRan,
    ScheduleResumed,
    ScheduleRunsDropped,
    ScheduleSet,
    Skipped,
    TimerEnded,
    TimerSet,
    TokenCreated,
    TokenRevoked,
    TopicDeleted,
    TopicHeld,
    TopicReleased,
    TopicSet,
    UserRemoved,
    UserSet,
    deletion_of,
    facts_of,
    record_of,
)
from commitlog.facts.lease_records import Kind, LeaseEntry
from commitlog.records import kinds, properties, record
from commitlog.records.kinds import End
from commitlog.records.message import Message
from commitlog.records.record import TYPE_COMMIT, TYPE_SYSTEM, Record
from services.broker.broker import Broker
from services.broker.spine.encoded_batch import TimersDelivered
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tidewheel import property_names
from txn import half

names = st.text(min_size=1, max_size=8)
times = st.integers(0, 1 << 50)
numbers = st.integers(0, 1 << 20)
pairs = st.lists(st.tuples(names, names).map(list), max_size=3)
policies = st.dictionaries(names, numbers, max_size=3)
TOLD_BY_JSON: dict[type, st.SearchStrategy[Any]] = {
    PolicySet: st.builds(PolicySet, names, policies),
    GroupLeft: st.builds(GroupLeft, names, st.text(max_size=8)),
    FiltersRemoved: st.builds(FiltersRemoved, names, names, pairs),
    GroupJoined: st.builds(
        GroupJoined,
        names,
        names,
        times,
        st.none() | st.tuples(names, names).map(list),
        st.dictionaries(numbers, st.lists(numbers, min_size=1), max_size=3),
        st.dictionaries(numbers, times, max_size=3),
    ),
    TopicDeleted: st.builds(TopicDeleted, names),
    TopicHeld: st.builds(TopicHeld, names, st.text(max_size=8)),
    TopicReleased: st.builds(TopicReleased, names, numbers),
    TopicSet: st.builds(TopicSet, names, names, numbers, st.none() | policies.filter(bool)),
    ScheduleSet: st.builds(ScheduleSet, names.map(lambda name: {"name": name}), times),
    ScheduleDeleted: st.builds(ScheduleDeleted, names),
    SchedulePaused: st.builds(SchedulePaused, names),
    ScheduleResumed: st.builds(ScheduleResumed, names, times),
    ScheduleRunsDropped: st.builds(ScheduleRunsDropped, names, times, st.none() | st.text()),
    LogCut: st.one_of(
        st.tuples(times, st.booleans()).map(lambda one: LogCut(*one)),
        st.builds(
            LogCut,
            times,
            st.booleans(),
            st.lists(st.tuples(names, numbers, times)),
            st.lists(times),
            st.lists(st.builds(Skipped, names, names, numbers, numbers)),
        ),
    ),
    EpochBegun: st.builds(EpochBegun, times, st.text(max_size=8), st.integers(OLDEST, 9)),
    UserSet: st.builds(UserSet, names, names, times),
    UserRemoved: st.builds(UserRemoved, names),
    TokenCreated: st.builds(TokenCreated, names, names, names, times, st.none() | times),
    TokenRevoked: st.builds(TokenRevoked, names),
    RulesSet: st.builds(RulesSet, pairs),
    RulesRemoved: st.builds(RulesRemoved, pairs),
}
MESSAGE = Message(topic="t", body=b"x", message_id="M1", delivery_ms=9_000, check_immunity_ms=2_000)


def kinds_of_facts(union: Any) -> set[type]:
    return {
        one
        for part in get_args(union)
        for one in (kinds_of_facts(part) if isinstance(part, UnionType) else {part})
    }


def stored(new: Record) -> Record:
    """Return the record as it is read at startup."""
    return record.decode(record.encode(new))


@given(st.one_of(*TOLD_BY_JSON.values()))
def test_what_a_record_tells_is_read_back(fact: Fact) -> None:
    new = record_of(fact)
    assert (new.topic, new.type) == (TOPICS[type(fact)], TYPE_SYSTEM)
    assert facts_of(stored(new)) == (fact,)


def test_each_fact_that_is_told_by_json_is_drawn() -> None:
    assert TOLD_BY_JSON.keys() == TOPICS.keys()


def test_the_record_of_a_deletion_empties_the_queues_and_removes_the_groups() -> None:
    record = deletion_of("t", [("t", 0, 7), ("t", 3, 2)], [-1, -1], ["g", "h"])
    assert facts_of(record) == (
        LogCut(0, is_done=False, queues=[("t", 0, 7), ("t", 3, 2)], places=[-1, -1]),
        GroupLeft("g", "t"),
        GroupLeft("h", "t"),
        TopicDeleted("t"),
    )
    assert facts_of(deletion_of("t", [], [], [])) == (TopicDeleted("t"),)


def test_acknowledgements_and_leases_are_facts() -> None:
    done = [MessagesFinished("g", "t", 1, [(4, 2)]), MessagesFinished("g", "t", 2, [(0, 9)], is_passed=True)]
    assert facts_of(Record(topic=kinds.ACK_TOPIC, body=acks.encode(done), sys_flag=TYPE_SYSTEM)) == tuple(
        done
    )
    entry = LeaseEntry(Kind.ENDED, 1, 2, 3, 0, 5, 0, "c", False, "")
    body = lease_records.encode([(("g", "t", 1), [entry])])
    told = facts_of(Record(topic=kinds.LEASE_TOPIC, body=body, sys_flag=TYPE_SYSTEM))
    assert told == (LeaseChanged(("g", "t", 1), entry),)


def test_a_half_is_stored_asked_about_ended_and_ended_late() -> None:
    one = half.half_record(MESSAGE, 0, 7_000)
    assert facts_of(stored(one)) == (HalfStored("t", "M1", 9_000, 7_000, 2),)
    one.physical_offset = 77
    assert facts_of(half.check_record(77, 3, 8_000)) == (CheckBackSent(77, 3, 8_000),)
    assert facts_of(half.check_record(77, 3)) == (CheckBackSent(77, 3, None),)
    assert facts_of(half.late_record(77, "COMMIT")) == (LateEndRequested(77, "COMMIT"),)
    assert facts_of(half.outcome_record(one, half.State.EXPIRED)) == (HalfEnded(77, "EXPIRED"),)
    assert facts_of(half.committed_record(one)) == (HalfEnded(77, "COMMIT"),)


def test_one_record_ends_a_half_sets_a_timer_and_ends_two() -> None:
    one = half.half_record(MESSAGE, 0, 7_000)
    one.physical_offset = 77
    committed = half.committed_timer_record(one, kinds.TIMER_TOPIC)
    committed.properties += properties.encode({
        property_names.REPLACES: "5",
        property_names.REPLACED_DUE_MS: "50",
        property_names.CANCELS: "6 60",
        property_names.CANCELS_TOPIC: "late",
    })  # fmt: skip
    assert facts_of(stored(committed)) == (
        TimerEnded(5, End.REPLACED, 50, "t"),
        TimerEnded(6, End.CANCELLED, 60, "late"),
        HalfEnded(77, "COMMIT"),
        TimerSet(9_000, "t", "M1", ""),
    )


def test_the_message_of_a_run_moves_its_schedule_on() -> None:
    marks = {property_names.SCHEDULE: "nightly", property_names.OCCURRENCE_MS: "500"}
    run = Record(topic="t", body=b"x", properties=properties.encode(marks))
    assert facts_of(run) == (ScheduleRan("nightly", 500),)


@pytest.mark.parametrize("sys_flag", [0, TYPE_COMMIT])
def test_a_message_tells_nothing_else(sys_flag: int) -> None:
    one = Record(topic="t", body=b"x", sys_flag=sys_flag, half_offset=9)
    assert facts_of(one) == ((HalfEnded(9, "COMMIT"),) if sys_flag else ())


def test_a_record_of_a_later_release_tells_nothing() -> None:
    assert facts_of(Record(topic="TW_SYS_LATER", body=b"\xff", sys_flag=TYPE_SYSTEM)) == ()


def test_each_fact_has_one_part_that_applies_it() -> None:
    broker = Broker.open(MemoryDisk(), BrokerSettings(), 0)
    assert broker._appliers.keys() == {*kinds_of_facts(Fact), TimersDelivered}
    assert broker._publishers.keys() <= broker._appliers.keys()


ROW = re.compile(r"^\| (`[A-Z].+?) \| `(\w+)` \| (?:`(\w+)`)? ?\|", re.MULTILINE)


def test_architecture_says_which_part_applies_and_publishes_each_fact() -> None:
    broker = Broker.open(MemoryDisk(), BrokerSettings(), 0)
    text = (Path(__file__).parents[4] / "docs" / "ARCHITECTURE.md").read_text()
    table = text[text.index("| fact | applied by |") :].split("\n\n")[0]
    said = {
        fact: (applies, publishes)
        for facts, applies, publishes in ROW.findall(table)
        for fact in re.findall(r"`(\w+)`", facts)
    }
    owners = {
        fact.__name__: (_owner(apply), _owner(broker._publishers.get(fact)))
        for fact, apply in broker._appliers.items()
    }
    assert said == owners


def _owner(function: Any) -> str:
    return "" if function is None else type(function.__self__).__name__
