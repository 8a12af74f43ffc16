"""Tests the faults that the scrub of a log finds, and the time for which the faults are reported."""

from __future__ import annotations

from random import Random

import pytest

from sharedlog.engine import Head, Stored
from sharedlog.errors import EngineUnavailable, LogDamaged
from sharedlog.fold import Position
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode
from sharedlog.scrub import CheckResult, Scrub, read_range
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
COUNT = 30


class CountedEngine(MemoryEngine):
    """An engine whose row counts are specified by the test."""

    counted = CheckResult([], 0, is_whole=True)

    def count_rows(self, from_record: int) -> CheckResult:
        return self.counted


@pytest.fixture
def engine() -> CountedEngine:
    engine = CountedEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    for number in range(COUNT):
        hold = b'{"next_record":0,"node":"n%d"}' % number
        engine.create_log(encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, hold)))
    return engine


def faults_of(engine: CountedEngine) -> list[str]:
    """Return the faults that a pass over the log finds."""
    found, looked = list[str](), CheckResult([], 0, is_whole=False)
    while not looked.is_whole:
        looked = read_range(engine, CLUSTER, looked.next_record)
        found += looked.faults
    return found


def test_a_sound_log_has_no_fault(engine: CountedEngine) -> None:
    assert faults_of(engine) == []
    engine.trim(12)
    assert faults_of(engine) == []


def test_a_changed_record_is_named(engine: CountedEngine) -> None:
    engine.spoil(20, engine.records[20][:-1] + b"X")
    assert faults_of(engine) == ["Record 20 does not match its CRC: 109 bytes are not what was written."]


def test_each_record_that_cannot_be_read_is_named_once_and_a_pass_ends_with_the_last(
    engine: CountedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, read = {0, 7, 8, COUNT - 1}, engine.read

    def checked(offset: int, bytes_max: int) -> list[Stored]:
        found = read(offset, bytes_max)[: 1 if bytes_max == 1 else None]
        for one in found:
            if one.offset in unreadable:
                raise LogDamaged(f"Record {one.offset} lies on a bad page.", one.offset)
        return found

    monkeypatch.setattr(engine, "read", checked)
    assert faults_of(engine) == [f"Record {number} lies on a bad page." for number in sorted(unreadable)]
    last = read_range(engine, CLUSTER, COUNT - 1)
    assert (last.next_record, last.is_whole) == (0, True)


def test_lines_of_others_are_no_fault(engine: CountedEngine) -> None:
    engine.spoil(3, b"hello")
    assert faults_of(engine) == []


def test_a_record_that_was_garbled_on_its_way_is_no_fault(
    engine: CountedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, reads = engine.read, iter([[Stored(0, engine.records[0][:-1] + b"X", 0)]])
    monkeypatch.setattr(engine, "read", lambda *given: next(reads, None) or kept(*given))
    assert read_range(engine, CLUSTER, 0) == ([], 1, False)


def test_a_fault_counts_until_a_later_pass_is_whole(engine: CountedEngine) -> None:
    now_ms = iter(range(0, 1_000_000, 1_000))
    scrub = Scrub(engine, CLUSTER, now_ms.__next__)
    engine.spoil(2, engine.records[2][:-1] + b"X")
    while scrub.ages()["reads"] == 0:
        scrub.check_next_ranges()
    (said,) = scrub.faults
    assert said.startswith("Record 2 does not match its CRC")
    del engine.spoiled[2]
    while scrub.ages()["reads"] < 2:
        assert scrub.faults == [said]
        scrub.check_next_ranges()
    assert scrub.faults == []
    engine.counted = CheckResult(["gone", "gone"], 0, is_whole=True)
    scrub.check_next_ranges()
    assert scrub.faults == ["gone"], "each once"


def test_ages_grow_while_the_engine_is_away(engine: CountedEngine) -> None:
    now_ms = iter(range(0, 1_000_000, 1_000))
    scrub = Scrub(engine, CLUSTER, now_ms.__next__)
    before = scrub.ages()
    engine.is_away = True
    with pytest.raises(EngineUnavailable):
        scrub.check_next_ranges()
    assert scrub.ages()["read_ms_ago"] > before["read_ms_ago"]
    assert scrub.ages()["reads"] == 0


def test_what_a_node_needs_and_the_log_has_no_more_is_told(engine: CountedEngine) -> None:
    needed = {"a": 9, "b": 3}
    scrub = Scrub(engine, CLUSTER, lambda: 0, lambda: needed)
    engine.trim(3)
    for _ in range(3):
        scrub.check_next_ranges()
        assert scrub.faults == []
    engine.trim(7)
    scrub.check_next_ranges()
    assert scrub.faults == [], "a node may have told that a moment ago"
    scrub.check_next_ranges()
    (said,) = scrub.faults
    assert said.startswith("The log begins at record 7, and node b reads on from 3: what it needs")
    needed["b"] = 8
    scrub.check_next_ranges()
    assert scrub.faults == []
