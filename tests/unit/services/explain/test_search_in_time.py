"""A search whose time is over says which part of the log it has searched, and calls no name unknown."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from commitlog.log.log import CommitLog
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.spine.errors import MessageNotFound
from services.explain.evidence import SearchedLog
from services.explain.explain import explain
from tests.memory_disk import MemoryDisk
from txn.half import half_record, outcome_record, transaction_id
from txn.states import State

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 16 * 1024
COUNT = 200


def log_of(keys: list[str], before: list[Record] | None = None) -> SearchedLog:
    """The log of a message for each key, each stored a second after the one before."""
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT_BYTES, 0, 0)
    for one in before or []:
        log.append(one)
    for at, key in enumerate(keys):
        message = Message(topic="t", body=b"x" * (at % 300), message_id=f"M{at}", keys=(key,))
        stored = Record("t", message.body, properties.encode_message(message), store_ms=START_MS + at * 1_000)
        log.append(stored)
        if (flush := log.take_flush()) is not None:
            flush.write()
            log.complete_flush(flush)
    return SearchedLog("store", disk, log.end_offset)


@pytest.fixture
def log() -> SearchedLog:
    """Two orders in turn, and one at each end of the log."""
    middle = [f"order:{number % 2}" for number in range(COUNT - 2)]
    return log_of(["first", *middle, "last"])


@pytest.mark.parametrize("chunk_bytes", [40, 1_000, 5_000, 1 << 30])
def test_a_search_by_chunks_finds_what_a_search_at_once_finds(
    log: SearchedLog, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = {name: explain(log, name).as_json() for name in ("first", "order:0", "order:1", "last", "@0")}
    assert len(at_once["order:0"]["events"]) == (COUNT - 2) // 2
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", chunk_bytes)
    assert {name: explain(log, name).as_json() for name in at_once} == at_once
    assert {one["searched_from_ms"] for one in at_once.values()} == {None}
    with pytest.raises(MessageNotFound):
        explain(log, "nobody")


@pytest.mark.parametrize("chunk_bytes", [100, 1_000, 1 << 30])
def test_the_first_records_are_told_of_a_name_that_has_too_many(
    log: SearchedLog, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explain.explain.RECORDS_MAX", 3)
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", chunk_bytes)
    found = explain(log, "order:1")
    assert (found.is_cut, [one.message_id for one in found.messages]) == (True, ["M2", "M4", "M6"])


def test_a_search_that_ends_early_has_searched_the_newest_part_and_says_so(
    log: SearchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", 4_000)
    newest = explain(log, "last", seconds_max=0)
    assert [one.message_id for one in newest.messages] == [f"M{COUNT - 1}"]
    assert newest.first_offset == log.end_offset - 4_000
    some = explain(log, "order:0", seconds_max=0)
    times = [event.store_ms for event in some.events]
    assert 0 < len(times) < (COUNT - 2) // 2
    assert some.searched_from_ms is not None
    assert START_MS < some.searched_from_ms <= times[0] < some.searched_from_ms + 2_000
    for name in ("first", "nobody", " first "):
        unknown = explain(log, name, seconds_max=0)
        assert (unknown.events, unknown.messages) == ([], [])
        assert unknown.searched_from_ms == some.searched_from_ms


def test_a_log_offset_is_found_in_the_part_that_is_not_searched(
    log: SearchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", 4_000)
    found = explain(log, "@0", seconds_max=0)
    assert [one.message_id for one in found.messages] == ["M0"]
    assert found.searched_from_ms is not None


def test_what_refers_to_a_message_is_followed_until_the_time_is_over(
    log: SearchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explain(log, "first")
    assert whole.followed_until_ms is None
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", 4_000)
    looks = 1 + -(-log.end_offset // 4_000) + 1  # the start of each pass, and each chunk of the first
    clock = chain([0.0] * looks, repeat(6.0))
    monkeypatch.setattr("services.explain.explain.monotonic", lambda: next(clock))
    found = explain(log, "first", seconds_max=5)
    assert (found.events, found.searched_from_ms) == (whole.events, None)
    assert found.followed_until_ms is not None
    assert START_MS < found.followed_until_ms < START_MS + 30_000


@pytest.mark.parametrize("by_id", [False, True])
def test_the_end_of_a_transaction_is_found_in_the_part_that_is_not_searched(
    by_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explain.explain.CHUNK_BYTES", 4_000)
    half = half_record(Message(topic="t", body=b"x", message_id="H"), 0, START_MS + 6_000)
    half.store_ms, half.physical_offset = START_MS, 0
    rollback = outcome_record(half, State.ROLLED_BACK)
    rollback.store_ms = START_MS + 500
    log = log_of([f"order:{number}" for number in range(COUNT)], [half, rollback])
    found = explain(log, transaction_id(0, "H") if by_id else "@0", seconds_max=0)
    assert [one.state for one in found.messages] == [one.state for one in explain(log, "H").messages]
    assert [event.what for event in found.events][-1] == "rolled back"
    assert found.searched_from_ms is not None
    assert found.followed_until_ms is not None, "the second pass had not come to the end of the log"
    assert found.followed_until_ms < found.searched_from_ms
