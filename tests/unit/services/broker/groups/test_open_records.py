"""What groups decide between two flushes, as records: when, how many, with which times, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from commitlog import limits
from commitlog.facts import acks
from commitlog.facts.acks import MessagesFinished
from commitlog.layout import SNAPSHOTS
from commitlog.log.recovery import LogScan
from commitlog.records.kinds import ACK_TOPIC, LEASE_TOPIC
from commitlog.records.message import MessageType
from commitlog.records.record import Record
from consumequeue.filters.filter import EVERYTHING
from services.broker.groups.group_values import GroupStart
from services.broker.spine.values import RetireSegments, StartPosition
from tests.simulation.tables import tables
from tests.unit.services.broker.groups.test_receiving import SETTINGS, Bench
from tests.unit.services.broker.groups.test_receiving_found import FORGETFUL


@pytest.fixture
def bench() -> Bench:
    return Bench()


def records(bench: Bench, topic: str) -> Iterator[Record]:
    """The durable records of a topic of the broker's own."""
    end_offset = bench.broker.durable_offset
    scan = LogScan(bench.disk, bench.settings.segment_bytes, 0, end_offset)
    return (found.record for found in scan if found.record.topic == topic)


def finished(bench: Bench) -> list[MessagesFinished]:
    return [one for record in records(bench, ACK_TOPIC) for one in acks.decode(record.body)]


def frozen(bench: Bench) -> object:
    return tables(bench.broker)["groups.progress"]


def test_what_a_turn_acknowledges_is_one_record_with_the_newest_time_of_it(bench: Bench) -> None:
    for _ in range(9):
        bench.send()
    held = bench.receive()
    bench.now_ms += 7
    told = [bench.broker.receiving.ack("g", "t", one.receipt_handle, bench.now_ms) for one in held[:3]]
    bench.now_ms -= 5
    told += [bench.broker.receiving.ack("g", "t", held[5].receipt_handle, bench.now_ms)]
    assert not bench.broker.is_quiet
    bench.flush()
    assert bench.broker.is_quiet
    (record,) = records(bench, ACK_TOPIC)
    assert record.store_ms == bench.now_ms + 5
    assert list(acks.decode(record.body)) == [MessagesFinished("g", "t", 0, [(0, 3), (5, 1)])]
    assert all(record.physical_offset < one <= bench.broker.durable_offset for one in told)


def test_what_a_filter_passes_over_is_recorded_once_and_an_idle_poll_records_nothing(bench: Bench) -> None:
    for tag in ("blue", "blue", "red", "blue"):
        bench.send(tag=tag)
    (red,) = bench.receive(tags="red")
    passed = [MessagesFinished("g", "t", 0, [(0, 2), (3, 1)], is_passed=True)]
    assert finished(bench) == passed
    end_offset = bench.broker.end_offset
    assert bench.receive(tags="red") == bench.receive(tags="red") == []
    assert (bench.broker.end_offset, bench.broker.is_quiet) == (end_offset, True)
    bench.ack(red)
    assert finished(bench) == [*passed, MessagesFinished("g", "t", 0, [(2, 1)])]


def test_a_start_from_the_log_alone_knows_what_was_passed_over(bench: Bench) -> None:
    for tag in ("blue", "red", "blue"):
        bench.send(tag=tag)
    bench.receive(tags="red")
    bench.checkpoint()
    before = frozen(bench)
    bench.disk.delete(SNAPSHOTS)
    bench.reopen()
    assert frozen(bench) == before
    assert bench.broker.groups.lag() == {("t", "g"): 1}


@pytest.mark.parametrize("segment_bytes", [1024, 1 << 20])
def test_a_turn_that_has_more_than_a_record_may_is_told_when_all_of_it_is_durable(
    monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr(limits, "OPEN_RECORD_BYTES_MAX", 20)
    bench = Bench(replace(SETTINGS, segment_bytes=segment_bytes, queue_count=4))
    for number in range(24):
        bench.send(f"m{number % 8}" if number % 2 else "")
    told, turn_count = [], 1
    while held := bench.receive(batch=5):
        told += [bench.broker.receiving.ack("g", "t", one.receipt_handle, bench.now_ms) for one in held]
        assert max(told) > bench.broker.durable_offset
        turn_count += 1
    for topic in (LEASE_TOPIC, ACK_TOPIC):
        assert len(list(records(bench, topic))) > turn_count
    bench.flush()
    assert max(told) <= bench.broker.durable_offset
    before = frozen(bench)
    bench.reopen()
    assert frozen(bench) == before


def test_a_reset_comes_behind_what_was_acknowledged_before_it(bench: Bench) -> None:
    bench.send("a")
    (one,) = bench.receive()
    bench.broker.receiving.ack("g", "t", one.receipt_handle, bench.now_ms)
    bench.broker.group_views.reset("g", "t", GroupStart(StartPosition.EARLIEST), False, bench.now_ms)
    bench.flush()
    before = frozen(bench)
    assert bench.broker.groups.lag() == {("t", "g"): 1}
    bench.reopen()
    assert frozen(bench) == before
    assert bench.ids() == ["M1"]


def test_a_cut_of_the_log_comes_behind_the_leases_that_were_given_out_before_it() -> None:
    bench = Bench(FORGETFUL)
    sent, cut = bench.send("a"), False
    while not cut:
        bench.send(body=b"x" * 900)
        for effect in bench.advance(1_000):
            if isinstance(effect, RetireSegments):
                effect.retirement.run(bench.disk)
                if not cut:
                    given = bench.broker.receiving.receive(
                        "g", "t", EVERYTHING, 1, 600_000, "c", False, bench.now_ms
                    ).deliveries
                    assert [one.message.message_id for one in given] == [sent]
                bench.broker.continue_retirement(effect.retirement, bench.now_ms)
                cut = True
        bench.flush()
        if bench.broker.is_checkpoint_due:
            bench.checkpoint()
    assert bench.broker.finding.queue_range("t", 0)[0] > 0
    before = tables(bench.broker)
    assert bench.broker.group_views.leased("g") == {"c": 1}
    bench.reopen()
    assert tables(bench.broker)["groups.progress"] == before["groups.progress"]
    assert bench.broker.group_views.leased("g") == {"c": 1}


def test_looking_makes_neither_offsets_nor_queues(bench: Bench) -> None:
    bench.broker.topics.create("u", MessageType.NORMAL, 3, bench.now_ms)
    bench.flush()
    before = tables(bench.broker)
    bench.broker.finding.read("u", 2, 0, 9)
    bench.broker.finding.queue_range("u", 1)
    bench.broker.group_views.view_all()
    assert tables(bench.broker) == before
    bench.receive(topic="u")
    assert tables(bench.broker)["groups.progress"] == tables(bench.broker)["queues"] == []
