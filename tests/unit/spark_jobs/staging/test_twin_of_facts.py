"""The audit reads what records mean by columns (`spark_jobs.staging.events`), as their facts say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.facts.facts import (
    CheckBackSent,
    Fact,
    HalfEnded,
    HalfStored,
    TimerEnded,
    TimerSet,
    TopicDeleted,
    TopicHeld,
    TopicReleased,
    TopicSet,
    facts_of,
    record_of,
)
from commitlog.log.published_log import open_log
from commitlog.records import properties
from commitlog.records.kinds import MESSAGES, TIMER_TOPIC, VERB_TOPIC, End, kind_of
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.timers import timer_records
from services.broker.timers.timer_records import ReplacedTimer
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.log.scan.decode import ALL, Wanted, batches
from spark_jobs.log.scan.slices import SLICE_BYTES_DEFAULT, slices
from spark_jobs.staging.events import COLUMNS, Code, Said, Words, events_of
from spark_jobs.staging.holds import HoldRow, hold_rows
from tidewheel import property_names
from txn import half
from txn.states import State

Told = tuple[int, int, int]
"""Log offset, code, and what it is about (-1 for nothing but itself)."""

CODES: Final = {
    ("COMMIT"): Code.COMMIT,
    ("ROLLBACK"): Code.ROLLBACK,
    ("EXPIRED"): Code.EXPIRED,
}
ENDS: Final = {
    End.DELIVERED: Code.DELIVERED,
    End.FIRED: Code.FIRED,
    End.MOVED: Code.MOVED,
    End.REPLACED: Code.REPLACED,
    End.CANCELLED: Code.CANCEL,
}
HELD_ENDS: Final = {End.DELIVERED: Code.RELEASED, End.MOVED: Code.HELD}
"""The end of a timer whose record contains the held mark."""


def drawn(chance: Random, count: int) -> Iterator[Record]:
    """Records of all kinds; each names places at random: what a record means does not hang on others."""
    for number in range(count):
        topic = chance.choice(SHOP.topics.all)
        due_ms = chance.randrange(1, 1 << 40)
        message = Message(topic=topic, body=b"{}", message_id=f"M{number}", keys=(f"O{number}",))
        timed = Message(topic=topic, body=b"{}", message_id=f"M{number}", delivery_ms=due_ms)
        stored = half.half_record(chance.choice([message, timed]), 0, 7_000)
        stored.physical_offset = chance.randrange(1, 1 << 30)
        waits = timer_records.timer_record(timed, 0)
        held = timer_records.held_record(waits, 3)
        other = chance.randrange(1, 1 << 30)
        made: list[Callable[[], Record]] = [
            lambda m=message: Record(topic=m.topic, body=m.body, properties=properties.encode_message(m, "")),
            lambda s=stored: s,
            lambda s=stored: half.committed_record(s),
            lambda s=stored: half.outcome_record(s, chance.choice([State.ROLLED_BACK, State.EXPIRED])),
            lambda s=stored: half.check_record(s.physical_offset, chance.randrange(9), 8_000),
            lambda s=stored: half.late_record(s.physical_offset, "COMMIT"),
            lambda t=timed, o=other: timer_records.timer_record(
                t, 0, chance.choice([None, ReplacedTimer(o, 5)])
            ),
            lambda t=timed: half.committed_timer_record(half.half_record(t, 0, 7_000), TIMER_TOPIC),
            lambda w=waits, o=other, d=due_ms: timer_records.moved_record(w, o, d, d + 1),
            lambda w=waits, o=other: timer_records.delivered_record(w, o, chance.choice(["", "FIRE"])),
            lambda w=waits, o=other: timer_records.held_record(w, o),
            lambda w=held, o=other: timer_records.delivered_record(w, o, chance.choice(["", "FIRE"])),
            lambda w=held, o=other, d=due_ms: timer_records.moved_record(w, o, d, d + 1),
            lambda w=held, o=other: timer_records.rebuilt_record(w, o, [], "a file"),
            lambda t=topic: record_of(TopicHeld(t, chance.choice(["", "the bank is closed"]))),
            lambda t=topic: record_of(TopicReleased(t, chance.choice([0, 500]))),
            lambda t=topic: record_of(TopicDeleted(t)),
            lambda t=topic: record_of(TopicSet(t, "DELAY", 2, None, 0)),
            lambda o=other, t=topic: timer_records.cancel_record(o, 9, t, "M", "why"),
            lambda o=other, t=topic: timer_records.unreadable_record(o, 9, t),
        ]
        one = chance.choice(made)()
        if kind_of(one) in ("normal", "commit", "half", "timer") and chance.random() < 0.3:
            carried = {property_names.CANCELS: f"{other} 60", property_names.CANCELS_TOPIC: topic}
            one.properties += properties.encode(carried)
        one.store_ms = 1_000
        yield one


def told_by(one: Record) -> Iterator[Told]:
    """The events of a record: one for each fact, and one for a message that ends no half and no timer."""
    facts = facts_of(one)
    for fact in facts:
        yield from ((one.physical_offset, code, ref) for code, ref in _event(fact, one))
    is_own = any(
        isinstance(fact, HalfEnded)
        or (isinstance(fact, TimerEnded) and fact.end in (End.DELIVERED, End.FIRED))
        for fact in facts
    )
    if kind_of(one) in MESSAGES and not is_own:
        yield one.physical_offset, Code.NORMAL, -1


def _event(fact: Fact, one: Record) -> Iterator[tuple[int, int]]:
    match fact:
        case HalfStored():
            yield Code.HALF, -1
        case CheckBackSent():
            yield Code.ASKED, fact.half_offset
        case HalfEnded() if one.topic != TIMER_TOPIC:
            yield CODES[fact.how], fact.half_offset
        case TimerSet():
            yield Code.TIMER, one.half_offset or -1
        case TimerEnded() if fact.end in ENDS:
            is_call, is_marked = one.topic == VERB_TOPIC, property_names.HELD in properties.of_record(one)
            code = HELD_ENDS.get(fact.end, ENDS[fact.end]) if is_marked else ENDS[fact.end]
            yield Code.CALLED_OFF if is_call else code, fact.timer_offset


def holds_by(one: Record) -> Iterator[HoldRow]:
    """Return the facts of a record about the hold of a topic."""
    for fact in facts_of(one):
        if isinstance(fact, TopicHeld | TopicReleased | TopicDeleted):
            pace = fact.per_second if isinstance(fact, TopicReleased) else 0
            is_held = isinstance(fact, TopicHeld)
            yield HoldRow(one.physical_offset, one.store_ms, fact.name, is_held, pace)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 30))
def test_columns_tell_what_facts_say(write_log: Callable[..., Path], seed: int) -> None:
    records = [*drawn(Random(seed), 200)]
    words, read, holds = Words(), list[Told](), list[HoldRow]()
    for part in slices(open_log(write_log(records)), SLICE_BYTES_DEFAULT):
        for batch in batches(part, Wanted(COLUMNS, bodies=ALL)):
            holds += hold_rows(Said(batch, SHOP.topics, words))
            for events in events_of(Said(batch, SHOP.topics, words), 0):
                columns = events.physical_offset, events.code, events.ref
                read += zip(*(column.tolist() for column in columns), strict=True)
    assert Counter(read) == Counter(told for one in records for told in told_by(one))
    assert holds == [row for one in records for row in holds_by(one)]
