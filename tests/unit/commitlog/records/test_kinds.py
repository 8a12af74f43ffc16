"""Tests the kinds of records, the timers that they end, and the table in ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commitlog.records import kinds, properties
from commitlog.records.kinds import End, TimerEnded
from commitlog.records.record import TYPE_COMMIT, TYPE_SYSTEM, Record

ARCHITECTURE = Path(__file__).parents[4] / "docs" / "ARCHITECTURE.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \| .+? \|$", re.MULTILINE)


def record(topic: str, sys_flag: int = 0, half_offset: int = 0, **marks: str) -> Record:
    stored = properties.encode(marks)
    return Record(topic=topic, body=b"x", sys_flag=sys_flag, half_offset=half_offset, properties=stored)


def rows() -> list[tuple[str, str]]:
    """Return the first two columns of the table of internal records."""
    text = ARCHITECTURE.read_text()
    table = text[text.index("| topic | type | meaning |") :].split("\n\n")[0]
    return [(found[1], found[2]) for found in ROW.finditer(table)][1:]


def test_architecture_has_a_row_for_each_topic_of_ours_and_for_no_other() -> None:
    named = {name for first, _ in rows() for name in re.findall(r"`([A-Za-z_%]+?)(?:<group>)?`", first)}
    queued = (kinds.HALF_TOPIC, kinds.TIMER_TOPIC, kinds.JOURNAL_TOPIC, kinds.TASK_TOPIC)
    ours = {*kinds.BY_TOPIC, kinds.AUTH_TOPIC, *queued}
    assert {name for name in named if name.startswith(("TW_SYS_", "RMQ_", "rmq_"))} == ours
    for topic in ours:
        types = {kind for first, kind in rows() if f"`{topic}`" in first}
        expected = "0" if topic in queued else "12"
        assert all(one.startswith(expected) for one in types), topic


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (record("orders"), "normal"),
        (record("orders", TYPE_COMMIT, 40), "commit"),
        (record("orders", TW_TIMER_OFFSET="7"), "delivered"),
        (record("%DLQ%g"), "dead letter"),
        (record("%RETRY%g"), "normal"),
        (record("SCHEDULE_TOPIC_XXXX"), "timer"),
        (record(kinds.TIMER_TOPIC, TYPE_COMMIT, 40), "timer"),
        (record(kinds.AUTH_TOPIC, TYPE_SYSTEM), "system"),
        (record("TW_SYS_LATER", TYPE_SYSTEM), "system"),
        *((record(topic), kind) for topic, kind in kinds.BY_TOPIC.items()),
    ],
)
def test_a_record_has_one_kind(given: Record, kind: str) -> None:
    assert kinds.kind_of(given) == kind
    assert kind in kinds.KINDS


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (record("orders"), []),
        (
            record("orders", TW_TIMER_OFFSET="7", TIMER_OUT_MS="50"),
            [TimerEnded(7, End.DELIVERED, 50, "orders")],
        ),
        (record("orders", TW_TIMER_OFFSET="7", TW_VERB="FIRE"), [TimerEnded(7, End.FIRED, 0, "orders")]),
        (
            record("orders", TW_TIMER_OFFSET="7", TW_CANCELS="9 60"),
            [TimerEnded(7, End.DELIVERED, 0, "orders")],
        ),
        (
            record("orders", TW_CANCELS="9 60", TW_CANCELS_TOPIC="late"),
            [TimerEnded(9, End.CANCELLED, 60, "late")],
        ),
        (record("orders", TW_CANCELS="a user's own"), []),
        (
            record(kinds.VERB_TOPIC, TYPE_SYSTEM, TW_TIMER_OFFSET="7", TW_VERB="CANCEL", REAL_TOPIC="orders"),
            [TimerEnded(7, End.CANCELLED, 0, "orders")],
        ),
        (
            record(kinds.VERB_TOPIC, TYPE_SYSTEM, TW_TIMER_OFFSET="7", TW_VERB="UNREADABLE"),
            [TimerEnded(7, End.UNREADABLE, 0, "")],
        ),
        (
            record(kinds.TIMER_TOPIC, TW_REPLACES="7", REAL_TOPIC="orders"),
            [TimerEnded(7, End.REPLACED, 0, "orders")],
        ),
        (
            record(
                kinds.TIMER_TOPIC,
                TW_REPLACES="7",
                TW_VERB="MOVE",
                TW_REPLACED_DUE_MS="8",
                REAL_TOPIC="orders",
            ),
            [TimerEnded(7, End.MOVED, 8, "orders")],
        ),
        (record("orders", TW_REPLACES="7"), []),
    ],
)
def test_a_record_ends_the_timers_that_it_names(given: Record, ends: list[TimerEnded]) -> None:
    assert list(kinds.endings(given)) == ends
    copy = properties.encode(kinds.without_endings(given.properties))
    replaced = Record(topic=kinds.TIMER_TOPIC, body=b"x", properties=copy)
    assert [one for one in kinds.endings(replaced) if one.end in (End.MOVED, End.REPLACED)] == []
