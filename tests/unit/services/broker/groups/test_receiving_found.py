"""Faults that the model test of receiving found (`tests/simulation/test_receiving.py`), each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog import limits
from commitlog.facts.lease_records import Kind, LeaseEntry
from commitlog.log.retention import RetentionPolicy
from consumequeue import queue
from consumequeue.entry import ENTRY_BYTES
from consumequeue.groups.in_flight import InFlight, Lease
from consumequeue.groups.offsets import GroupOffsets
from services.broker.groups.group_values import GroupPolicy
from services.broker.spine.errors import MessageNotFound
from services.broker.spine.values import RetireSegments
from tests.missed_counts import missed_counts
from tests.unit.services.broker.groups.test_receiving import SETTINGS, Bench
from tidewheel.errors import InvalidReceiptHandle

LEASED = LeaseEntry(Kind.LEASED, 0, 1, 0, 1, 5, 0, "c", False, "a")
ENDED = LeaseEntry(Kind.ENDED, 1, 1, 0, 0, 1, 0, "c", False, "")
FORGETFUL = replace(
    SETTINGS,
    segment_bytes=4096,
    housekeeping_ms=1_000,
    retention=RetentionPolicy(log_bytes_max=8192, group_pin_ms=0),
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_after_a_restart_a_filter_passes_over_nothing_that_is_wanted(bench: Bench) -> None:
    bench.send(tag="blue")
    bench.send(tag="red")
    bench.send("a", tag="red")
    assert bench.ids(tags="red") == ["M2", "M3"]
    bench.reopen()
    assert bench.ids(tags="red") == ["M2"], "M3 is leased still, and what lies before it is not done for that"


def test_a_run_takes_nothing_whose_attempts_are_used_up(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=1, fifo_run_max=2), bench.now_ms)
    bench.send("a")
    bench.send("a")
    unheard, _ = bench.receive()
    bench.broker.receiving.release("g", "t", unheard.receipt_handle, bench.now_ms)
    bench.advance(20_000)
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == ("M1", 1)
    bench.ack(again)
    assert bench.receive() == []
    assert [
        one.message.message_id for one in bench.broker.dead_letters.read_page("g", None, 9).dead_letters
    ] == ["M2"]


def test_an_attempt_under_way_at_a_checkpoint_is_counted_by_nobody(bench: Bench) -> None:
    bench.send()
    bench.receive()
    bench.checkpoint()
    bench.reopen()
    assert [one.attempt for one in bench.receive()] == [1]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_an_attempt_that_was_suspended_does_not_count_after_a_restart_either(
    bench: Bench, is_checkpointed: bool
) -> None:
    bench.send("a")
    (delivery,) = bench.receive()
    bench.broker.receiving.change_invisible("g", "t", delivery.receipt_handle, 30_000, True, bench.now_ms)
    bench.flush()
    if is_checkpointed:
        bench.checkpoint()
    bench.reopen()
    bench.advance(30_000)
    assert [one.attempt for one in bench.receive()] == [1]


def test_a_handle_of_before_a_restart_is_refused_though_the_clock_was_set_back(bench: Bench) -> None:
    bench.send()
    bench.now_ms -= 3_600_000
    bench.reopen()
    (stale,) = bench.receive()
    bench.now_ms += 1
    bench.reopen()
    assert bench.ids() == ["M1"]
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(stale)


def test_looking_at_the_dead_letters_of_a_group_that_has_none_leaves_nothing_behind(bench: Bench) -> None:
    before = bench.broker.groups.freeze()
    assert bench.broker.dead_letters.read_page("nobody", None, 9).dead_letters == []
    assert bench.broker.groups.freeze() == before


def test_a_new_group_does_not_look_for_what_was_deleted_before_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCANNED_PER_RECEIVE_MAX", 1)
    bench = Bench(FORGETFUL)
    _fill(bench, 30)
    first, _ = bench.broker.finding.queue_range("t", 0)
    assert first > 0
    assert bench.ids() == [f"M{first + 1}"]
    _fill(bench, 30)
    after, _ = bench.broker.finding.queue_range("t", 0)
    assert missed_counts(bench.broker)[("t", "g")] == after - first


def test_what_was_deleted_with_the_file_of_its_queue_can_be_forwarded_and_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 4 * ENTRY_BYTES)
    bench = Bench(FORGETFUL)
    for _ in range(7):
        bench.send()
    held, *others = bench.receive(invisible_ms=3_600_000)
    for one in others:
        bench.broker.receiving.forward_to_dead_letter("g", "t", one.receipt_handle, bench.now_ms)
    _fill(bench, 30)
    assert bench.broker.finding.queue_range("t", 0)[0] > 4
    bench.broker.receiving.forward_to_dead_letter("g", "t", held.receipt_handle, bench.now_ms)
    bench.flush()
    assert bench.broker.finding.queue_range("%DLQ%g", 0)[0] > 4
    with pytest.raises(MessageNotFound):
        bench.broker.dead_letters.purge("g", 0, bench.now_ms)


def _fill(bench: Bench, count: int) -> None:
    """Sends many messages, and lets retention delete what it may."""
    for _ in range(count):
        bench.send(body=b"x" * 900)
        for effect in bench.advance(1_000):
            if isinstance(effect, RetireSegments):
                effect.retirement.run(bench.disk)
                bench.broker.continue_retirement(effect.retirement, bench.now_ms)
                bench.flush()
        if bench.broker.is_checkpoint_due:
            bench.checkpoint()


def test_a_lease_on_a_message_that_retention_has_deleted_frees_its_message_group_when_it_ends() -> None:
    flight = InFlight(GroupOffsets())
    flight.lease(Lease(1, 0, 0, message_group="a"))
    flight.offsets.take(LEASED)
    assert flight.candidate(2) == 1
    flight.park(1, "a")
    flight.offsets.skip_to(1)
    flight.skipped_to(1)
    flight.offsets.take(ENDED)
    flight.return_message(0)
    assert flight.candidate(2) == 1
    assert flight.message_groups.is_free("a", 1)
    assert flight.offsets.freeze()["attempts"] == []


def test_records_of_a_lease_count_though_its_message_was_deleted() -> None:
    offsets = GroupOffsets()
    offsets.take(LEASED)
    offsets.skip_to(1)
    thawed = GroupOffsets.thaw(offsets.freeze())
    thawed.take(LEASED._replace(generation=2, at_ms=9))
    assert [one.generation for one in InFlight(thawed).leases()] == [2]
    thawed.take(ENDED)
    assert not thawed.leases


def test_attempts_at_a_message_that_was_deleted_are_not_kept() -> None:
    offsets = GroupOffsets()
    offsets.take(ENDED)
    offsets.skip_to(1)
    assert offsets.freeze()["attempts"] == []


def test_attempts_at_what_a_filter_passes_over_after_a_restart_are_not_kept() -> None:
    offsets = GroupOffsets()
    offsets.take(ENDED)
    thawed = GroupOffsets.thaw(offsets.freeze())
    thawed.finish(0, 1)
    assert thawed.freeze()["attempts"] == []


def test_what_goes_to_the_dead_letters_waits_no_more() -> None:
    flight = InFlight(GroupOffsets())
    flight.lease(Lease(1, 0, 0))
    flight.return_message(0)
    assert (flight.candidate(1), flight.waiting_count) == (0, 1)
    flight.offsets.finish(0, 1)
    flight.finished([0])
    assert flight.waiting_count == 0


def test_what_is_deleted_waits_no_more() -> None:
    flight = InFlight(GroupOffsets())
    flight.lease(Lease(1, 0, 0))
    flight.return_message(0)
    flight.offsets.skip_to(1)
    flight.skipped_to(1)
    assert flight.waiting_count == 0
