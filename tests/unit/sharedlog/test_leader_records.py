"""Tests the list of leader record offsets and CRC-32s that a fold keeps."""

from __future__ import annotations

import pytest

from sharedlog import leader_records
from sharedlog.leader_records import LeaderRecord, LeaderRecords


def remembered(*offsets: int) -> LeaderRecords:
    records = LeaderRecords()
    for one in offsets:
        records.add(one, 100 + one)
    return records


def test_a_record_comes_with_the_one_before_it() -> None:
    records = remembered(1, 4, 5)
    assert records.records_up_to(0) == []
    assert records.records_up_to(1) == [LeaderRecord(1, 101)]
    assert records.records_up_to(3) == [LeaderRecord(1, 101)]
    assert records.records_up_to(4) == [LeaderRecord(1, 101), LeaderRecord(4, 104)]
    assert records.records_up_to(9) == [LeaderRecord(5, 105)]


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_records, "LEADER_RECORDS_MAX", 4)
    records = remembered(*range(5))
    assert records.records_up_to(1) == []
    assert records.records_up_to(2) == [LeaderRecord(2, 102)]


def test_a_checkpoint_keeps_what_lies_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_records, "FROZEN_LEADER_RECORDS_MAX", 3)
    records = remembered(1, 4, 5, 7)
    assert records.freeze(7) == [[4, 104], [5, 105]]
    assert LeaderRecords.thaw(records.freeze(7)).records_up_to(5) == [
        LeaderRecord(4, 104),
        LeaderRecord(5, 105),
    ]
