"""Tests which parts of a log belong to which epoch, even if the beginning of the log was deleted."""

from __future__ import annotations

from commitlog.epochs import EpochRange, begun_by, epoch_at, epochs_of, leader_at
from commitlog.records.kinds import EPOCH_TOPIC
from commitlog.records.record import Record

FOURTH, SIXTH = EpochRange(500, 4, 40), EpochRange(900, 6, 60)
FIRST = EpochRange(500, 1, 10)


def begun(offset: int, body: bytes, store_ms: int) -> EpochRange:
    return begun_by(Record(topic=EPOCH_TOPIC, body=body, physical_offset=offset, store_ms=store_ms))


def test_a_store_that_was_always_alone_has_none() -> None:
    assert epochs_of([], 0, 0) == epochs_of([], 300, 0) == []
    assert epoch_at([], 100) is None


def test_what_lies_before_the_first_record_of_an_epoch_is_told_apart() -> None:
    assert epochs_of([SIXTH, FOURTH], 500, 6) == [FOURTH, SIXTH]
    assert epochs_of([FOURTH, SIXTH], 300, 6) == [EpochRange(300, None), FOURTH, SIXTH]
    assert epochs_of([FOURTH, SIXTH], 0, 6) == [EpochRange(0, 0), FOURTH, SIXTH]
    assert epochs_of([FIRST], 300, 1) == [EpochRange(300, 0), FIRST]
    assert epochs_of([], 300, 6) == [EpochRange(300, 6)]


def test_a_record_is_of_the_epoch_that_began_at_it_or_before() -> None:
    whole, cut = epochs_of([FOURTH, SIXTH], 0, 6), epochs_of([FOURTH, SIXTH], 300, 6)
    assert [epoch_at(whole, offset) for offset in (0, 499, 500, 899, 900, 10_000)] == [0, 0, 4, 4, 6, 6]
    assert [epoch_at(cut, offset) for offset in (100, 300, 500)] == [None, None, 4]
    assert [epoch_at(epochs_of([FIRST], 300, 1), offset) for offset in (100, 300, 500)] == [0, 0, 1]
    assert [epoch_at(epochs_of([], 300, 6), offset) for offset in (100, 300)] == [None, 6]


def test_who_led_is_what_the_epochs_record_says() -> None:
    unnamed, named = (
        begun(500, b'{"epoch": 4, "node": "", "version": 3}', 40),
        begun(900, b'{"epoch": 6, "node": "b", "version": 3}', 60),
    )
    assert unnamed == FOURTH
    assert named == EpochRange(900, 6, 60, "b")
    epochs = epochs_of([unnamed, named], 0, 6)
    assert [leader_at(epochs, offset) for offset in (0, 500, 899, 900, 1_000)] == ["", "", "", "b", "b"]
    assert leader_at(epochs_of([named], 900, 6), 100) == ""
