"""The rules between records: each is broken by a log that is wrong in just that way."""

from __future__ import annotations

import pytest

from commitlog.log.recovery import Damage, FoundRecord
from commitlog.records import properties
from commitlog.records.kinds import EPOCH_TOPIC, HALF_TOPIC, TIMER_TOPIC, VERB_TOPIC
from commitlog.records.record import TYPE_COMMIT, TYPE_SYSTEM, Record
from services.store.verify.invariants import breaches
from tidewheel import property_names


def log(*records: Record) -> list[FoundRecord]:
    """The records at 0, 100, 200 ..."""
    for number, one in enumerate(records):
        one.physical_offset = 100 * number
    return [FoundRecord(one, 100) for one in records]


def message(queue_offset: int = 0, **attributes: object) -> Record:
    return Record(topic="t", body=b"x", queue_offset=queue_offset, **attributes)  # type: ignore[arg-type]


def commit(half_offset: int, queue_offset: int = 0) -> Record:
    return message(queue_offset, sys_flag=TYPE_COMMIT, half_offset=half_offset)


def delivery(timer_offset: int, queue_offset: int = 0, due_ms: int = 0, verb: str = "") -> Record:
    stored = {property_names.TIMER_OFFSET: str(timer_offset), property_names.DUE_MS: str(due_ms or "")}
    stored[property_names.VERB] = verb
    return message(queue_offset, properties=properties.encode(stored), store_ms=1_000)


def cancel(timer_offset: int) -> Record:
    stored = properties.encode({property_names.TIMER_OFFSET: str(timer_offset)})
    return Record(topic=VERB_TOPIC, body=b"", sys_flag=TYPE_SYSTEM, properties=stored)


def half(queue_offset: int = 0) -> Record:
    return Record(topic=HALF_TOPIC, body=b"x", queue_offset=queue_offset)


def timer(replaces: int = -1, queue_offset: int = 0, verb: str = "") -> Record:
    marks = {property_names.DUE_MS: "1000", property_names.VERB: verb}
    if replaces >= 0:
        marks |= {property_names.REPLACES: str(replaces), property_names.REPLACED_DUE_MS: "7"}
    stored = properties.encode(marks)
    return Record(topic=TIMER_TOPIC, body=b"x", queue_offset=queue_offset, properties=stored)


def epoch(number: int) -> Record:
    body = b'{"epoch": %d, "node": "a", "version": 3}' % number
    return Record(topic=EPOCH_TOPIC, body=body, sys_flag=TYPE_SYSTEM)


def carrier(timer_offset: int, queue_offset: int = 0) -> Record:
    return message(queue_offset, properties=properties.encode({property_names.CANCELS: f"{timer_offset} 7"}))


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([half(), commit(0), commit(0, 1)], "ends the half at 0 again; 100 ended it"),
        ([message(), commit(0, 1)], "ends a half at 0, where there is none"),
        ([timer(), delivery(0), cancel(0)], "ends the timer at 0 again; 100 ended it"),
        ([message(), cancel(0)], "ends a timer at 0, where there is none"),
        ([timer(), timer(0, 1), cancel(0)], "ends the timer at 0 again; 100 ended it"),
        ([timer(), cancel(0), timer(0, 1, "MOVE")], "ends the timer at 0 again; 100 ended it"),
        ([timer(), carrier(0), delivery(0, 1)], "ends the timer at 0 again; 100 ended it"),
        ([timer(), delivery(0, verb="FIRE"), carrier(0, 1)], "ends the timer at 0 again; 100 ended it"),
        ([message(), timer(0)], "ends a timer at 0, where there is none"),
        ([timer(), delivery(0, due_ms=1007)], "was delivered 7 ms early"),
        ([message(0), message(2)], "has queue offset 2 in t queue 0, where 1 comes next"),
        ([message(0), message(1), message(1)], "has queue offset 1 in t queue 0 again"),
        ([epoch(2), epoch(2)], "begins epoch 2, after epoch 2"),
    ],
)
def test_each_rule_is_told_when_it_is_broken(records: list[Record], what: str) -> None:
    found = log(*records)
    assert breaches(found, 0, []) == [(found[-1].record.physical_offset, what)]


def test_a_log_that_keeps_them_has_no_breach() -> None:
    records = log(half(), commit(0), timer(), delivery(200, 1, due_ms=1000), message(2), epoch(2), epoch(9))
    assert breaches(records, 0, []) == []


def test_a_timer_may_be_moved_set_again_cancelled_by_a_carrier_and_fired_before_its_time() -> None:
    delivered_carrier = delivery(500, 3)
    delivered_carrier.properties += properties.encode({property_names.CANCELS: "400 7"})
    records = log(
        timer(), timer(0, 1, "MOVE"), timer(100, 2), delivery(200, 0, 9_000, "FIRE"),
        timer(queue_offset=3), timer(queue_offset=4), carrier(400, 1), message(2), delivered_carrier,
    )  # fmt: skip
    assert breaches(records, 0, []) == []


def test_what_damage_took_or_retention_deleted_is_held_against_nobody() -> None:
    records = log(half(), message(0), commit(0, 2), delivery(50, 3))
    assert breaches([records[1], records[2], records[3]], 0, [Damage(0, 100)])[0].what.startswith("has queue")
    assert breaches(records[2:], 200, []) == []
    assert breaches([records[1], records[3]], 100, [Damage(200, 300)]) == []
