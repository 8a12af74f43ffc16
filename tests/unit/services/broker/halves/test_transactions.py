"""Halves listed, asked about, resolved by hand; how they ended is known however long ago that was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog import limits
from commitlog.log import imported
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.errors import KeyPending
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import CheckBackRequest, HalfFilter, Resolution, SendReceipt
from tests.applied import limited
from tests.memory_disk import MemoryDisk
from tidewheel.errors import ClientMistake, TransactionEnded
from txn import outcomes
from txn.checkback import CheckBackPolicy
from txn.errors import InvalidTransactionId
from txn.half import transaction_id
from txn.states import State

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(
    segment_bytes=1 << 20,
    check_back=CheckBackPolicy(immunity_ms=500, interval_ms=400, interval_ms_max=400, count_max=2),
)


class Bench:
    """A broker on a disk in memory, whose producers never know."""

    def __init__(self) -> None:
        self.disk, self.now_ms, self.count = MemoryDisk(), NOW_MS, 0
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def send(self, **attributes: object) -> SendReceipt:
        self.count += 1
        message = Message(topic="t", body=b"x", message_id=f"M{self.count}", transactional=True)
        receipt = self.broker.sending.send(replace(message, **attributes), self.now_ms)
        self.flush()
        return receipt

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def pass_time(self, ms: int) -> list[CheckBackRequest]:
        """Let time pass; every question reaches somebody."""
        self.now_ms += ms
        asked = [effect for effect in self.broker.tick(self.now_ms) if isinstance(effect, CheckBackRequest)]
        for question in asked:
            self.broker.transactions.complete_check_back(question.transaction_id, True, self.now_ms)
        self.flush()
        return asked

    def expire(self) -> SendReceipt:
        receipt = self.send(keys=("order-1",))
        for _ in range(4):
            self.pass_time(600)
        return receipt

    def restart(self) -> None:
        self.flush()
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def end(self, half: SendReceipt, how: Resolution) -> None:
        self.broker.transactions.end("t", half.transaction_id, half.message_id, how, self.now_ms)
        self.flush()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_open_and_expired_halves_are_listed_oldest_first_in_pages(bench: Bench) -> None:
    expired = bench.expire()
    opened = [bench.send() for _ in range(3)]
    first = bench.broker.half_views.page(HalfFilter(), None, 3)
    assert [one.state for one in first.halves] == [State.EXPIRED, State.OPEN, State.OPEN]
    rest = bench.broker.half_views.page(HalfFilter(), first.after, 3)
    assert [one.transaction_id for one in rest.halves] == [opened[2].transaction_id]
    assert rest.after is None
    only = bench.broker.half_views.page(HalfFilter(state=State.EXPIRED), None, 9).halves
    assert [(one.transaction_id, one.check_count, one.keys) for one in only] == [
        (expired.transaction_id, 2, ("order-1",))
    ]
    assert bench.broker.half_views.page(HalfFilter(topic="other"), None, 9).halves == []
    assert bench.broker.half_views.page(HalfFilter(stored_before_ms=NOW_MS + 1), None, 9).halves == only


def test_a_late_end_of_an_expired_half_is_refused_and_listed(bench: Bench) -> None:
    half = bench.expire()
    with pytest.raises(TransactionEnded, match=r"EXPIRED 600ms ago.*tidewheel txn resolve"):
        bench.end(half, Resolution.COMMIT)
    late = (("COMMIT", bench.now_ms),)
    assert bench.broker.half_views.get_half(half.transaction_id).late == late
    bench.restart()
    assert bench.broker.half_views.get_half(half.transaction_id).late == late


def test_of_late_ends_the_first_are_noted_and_the_log_does_not_grow_by_more(bench: Bench) -> None:
    half = bench.expire()
    sizes = set()
    for number in range(outcomes.LATE_ENDS_MAX + 5):
        with pytest.raises(TransactionEnded):
            bench.end(half, list(Resolution)[number % 2])
        sizes.add(bench.broker.end_offset)
    assert (
        len(sizes)
        == len(bench.broker.half_views.get_half(half.transaction_id).late)
        == outcomes.LATE_ENDS_MAX
    )
    with pytest.raises(TransactionEnded):
        bench.broker.transactions.create_check_back(half.transaction_id)
    bench.broker.transactions.resolve(half.transaction_id, Resolution.COMMIT, "why", bench.now_ms)
    bench.restart()
    assert bench.broker.half_views.get_half(half.transaction_id).state is State.COMMITTED


def test_a_start_with_other_settings_asks_when_the_records_say(bench: Bench) -> None:
    halves = [bench.send() for _ in range(2)]
    bench.broker.transactions.complete_check_back(halves[1].transaction_id, True, bench.now_ms)
    bench.flush()
    before = [bench.broker.half_views.get_half(one.transaction_id).next_check_ms for one in halves]
    other = replace(SETTINGS, check_back=CheckBackPolicy(immunity_ms=9, interval_ms=9, count_max=9))
    bench.broker = Broker.open(bench.disk, other, bench.now_ms)
    assert [bench.broker.half_views.get_half(one.transaction_id).next_check_ms for one in halves] == before


def test_a_retry_after_a_start_gets_the_first_receipt(bench: Bench) -> None:
    first = bench.send(delivery_ms=NOW_MS + 60_000)
    bench.restart()
    bench.count -= 1
    assert bench.send(delivery_ms=NOW_MS + 60_000) == first
    assert first.recall_handle


@pytest.mark.parametrize("how", list(Resolution))
def test_an_operator_resolves_what_expired_and_the_reason_is_kept(bench: Bench, how: Resolution) -> None:
    half = bench.expire()
    bench.broker.transactions.resolve(half.transaction_id, how, "the database has it", bench.now_ms)
    bench.restart()
    found = bench.broker.half_views.get_half(half.transaction_id)
    assert (found.state.value[:6], found.reason) == (how.value[:6] if how is Resolution.COMMIT else "ROLLED",
                                                     "the database has it")  # fmt: skip
    again = bench.broker.transactions.resolve(half.transaction_id, how, "again", bench.now_ms)
    assert again.repeated
    other = next(one for one in Resolution if one is not how)
    with pytest.raises(TransactionEnded):
        bench.broker.transactions.resolve(half.transaction_id, other, "no", bench.now_ms)
    got = bench.broker.receiving.receive("g", "t", EVERYTHING, 9, 10_000, "c", False, bench.now_ms).deliveries
    assert [one.message.message_id for one in got] == ([half.message_id] if how is Resolution.COMMIT else [])


@pytest.mark.parametrize("how", list(Resolution))
def test_an_end_that_is_not_remembered_is_found_in_the_log(
    bench: Bench, how: Resolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, ended_halves_max=2)
    half = bench.send()
    bench.end(half, how)
    for _ in range(5):
        bench.end(bench.send(), Resolution.COMMIT)
    assert bench.broker.half_views.get_half(half.transaction_id).state.value.startswith(how.value[:4])
    bench.end(half, how)
    other = next(one for one in Resolution if one is not how)
    with pytest.raises(TransactionEnded):
        bench.end(half, other)


@pytest.mark.parametrize("forged", ["", "x" * 24, "0" * 24, "F" * 24, "-000000000000001AAAAAAAA", "0" * 16])
def test_a_forged_id_names_nothing(bench: Bench, forged: str) -> None:
    bench.send()
    with pytest.raises(InvalidTransactionId):
        bench.broker.half_views.get_half(forged)
    with pytest.raises(InvalidTransactionId):
        bench.broker.transactions.resolve(forged, Resolution.COMMIT, "why", bench.now_ms)
    with pytest.raises(InvalidTransactionId):
        bench.broker.transactions.end("t", forged, "M1", Resolution.COMMIT, bench.now_ms)


def test_the_id_of_another_record_names_no_half(bench: Bench) -> None:
    normal = bench.send(transactional=False)
    with pytest.raises(InvalidTransactionId):
        bench.broker.half_views.get_half(transaction_id(normal.physical_offset, normal.message_id))


def test_a_topic_may_have_check_backs_of_its_own(bench: Bench) -> None:
    bench.send()
    policy = CheckBackPolicy(immunity_ms=5_000, interval_ms=1_000, interval_ms_max=9_000, count_max=1)
    bench.broker.transactions.set_check_back("t", policy, bench.now_ms)
    bench.restart()
    half = bench.send()
    assert [one.check_count_max for one in bench.broker.half_views.page(HalfFilter(), None, 9).halves] == [
        1,
        1,
    ]
    assert half.transaction_id not in [one.transaction_id for one in bench.pass_time(4_999)]
    assert half.transaction_id in [one.transaction_id for one in bench.pass_time(1)]
    with pytest.raises(ClientMistake):
        bench.broker.transactions.set_check_back("t", replace(policy, count_max=0), bench.now_ms)


def test_a_producer_can_be_asked_at_once(bench: Bench) -> None:
    half = bench.send()
    assert (
        bench.broker.transactions.create_check_back(half.transaction_id).transaction_id == half.transaction_id
    )
    bench.end(half, Resolution.COMMIT)
    with pytest.raises(TransactionEnded, match="COMMITTED"):
        bench.broker.transactions.create_check_back(half.transaction_id)


def test_a_half_that_waits_for_a_producer_is_not_asked_about_because_the_clock_was_set_back(
    bench: Bench,
) -> None:
    half = bench.send()
    bench.now_ms += 600
    [question] = [one for one in bench.broker.tick(bench.now_ms) if isinstance(one, CheckBackRequest)]
    # No producer was connected.
    bench.broker.transactions.complete_check_back(question.transaction_id, False, bench.now_ms)
    bench.now_ms -= 300  # by this clock it is not due yet
    bench.broker.transactions.create_check_back(half.transaction_id)
    bench.broker.transactions.complete_check_back(half.transaction_id, False, bench.now_ms)
    assert bench.pass_time(10_000) == []
    bench.broker.transactions.schedule_waiting_check_backs("t", bench.now_ms)
    assert [one.transaction_id for one in bench.pass_time(0)] == [half.transaction_id]


def test_halves_are_found_by_key(bench: Bench) -> None:
    half = bench.send(keys=("order-7",))
    bench.end(half, Resolution.COMMIT)
    [found] = bench.broker.half_views.find_by_key("t", "order-7", 9)
    assert (found.transaction_id, found.state) == (half.transaction_id, State.COMMITTED)


def test_an_immunity_of_days_is_refused(bench: Bench) -> None:
    with pytest.raises(ClientMistake, match="24 hours"):
        bench.send(check_immunity_ms=25 * 3_600_000)


def test_a_half_with_a_unique_key_that_is_taken_is_refused_at_its_send(bench: Bench) -> None:
    due_ms = NOW_MS + 60_000
    bench.send(delivery_ms=due_ms, transactional=False, properties={"TW_TIMER_KEY": "k"})
    with pytest.raises(KeyPending):
        bench.send(delivery_ms=due_ms, properties={"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": "true"})


def test_what_came_of_a_carried_verb_is_told_with_the_half(bench: Bench) -> None:
    due_ms = NOW_MS + 60_000
    bench.send(delivery_ms=due_ms, transactional=False, properties={"TW_TIMER_KEY": "k"})
    half = bench.send(properties={"TW_TIMER_CANCEL": "k"})
    assert bench.broker.half_views.get_half(half.transaction_id).verdict == ""
    bench.end(half, Resolution.COMMIT)
    assert bench.broker.half_views.get_half(half.transaction_id).verdict == "CANCELLED"
    late = bench.send(properties={"TW_TIMER_CANCEL": "k"})
    bench.end(late, Resolution.COMMIT)
    assert bench.broker.half_views.get_half(late.transaction_id).verdict.startswith("ALREADY at ")


def test_what_became_of_an_imported_half_is_not_guessed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = bench.send()
    bench.end(half, Resolution.COMMIT)
    bench.broker.checkpoint(bench.now_ms).write(bench.disk)
    imported.write(bench.disk, bench.broker.end_offset)
    bench.restart()
    assert bench.broker.half_views.get_half(half.transaction_id).state is State.COMMITTED
    limited(monkeypatch, ended_halves_max=0)
    bench.end(bench.send(), Resolution.COMMIT)
    with pytest.raises(InvalidTransactionId):
        bench.broker.half_views.get_half(half.transaction_id)
    assert bench.broker.half_views.find_by_key("t", half.message_id, 9) == []


def test_an_end_by_another_topic_is_refused_even_when_the_half_is_deleted(bench: Bench) -> None:
    half = bench.send()
    bench.end(half, Resolution.COMMIT)
    bench.broker.store.log.first_offset = bench.broker.durable_offset
    bench.end(half, Resolution.COMMIT)
    with pytest.raises(InvalidTransactionId):
        bench.broker.transactions.end(
            "other", half.transaction_id, half.message_id, Resolution.COMMIT, bench.now_ms
        )


def test_a_half_sent_after_a_clock_was_ahead_is_asked_about_in_time_and_one_sent_meanwhile_never_early(
    bench: Bench,
) -> None:
    ahead_ms = 3_600_000
    bench.now_ms += ahead_ms
    meanwhile = bench.send()
    bench.now_ms -= ahead_ms
    bench.pass_time(0)
    after = bench.send()
    assert bench.pass_time(499) == []
    assert [asked.transaction_id for asked in bench.pass_time(1)] == [after.transaction_id]
    bench.end(after, Resolution.COMMIT)
    assert bench.pass_time(ahead_ms - 1) == []
    assert [asked.transaction_id for asked in bench.pass_time(1)] == [meanwhile.transaction_id]


@pytest.mark.parametrize("restarts", [False, True])
def test_check_backs_come_when_the_policy_says_and_as_often(bench: Bench, restarts: bool) -> None:
    """After 500 ms, then 400, 800 and 1,500 (not 1,600) ms later; after 1,500 ms more the half expires."""
    policy = CheckBackPolicy(immunity_ms=500, interval_ms=400, interval_ms_max=1_500, count_max=4)
    bench.send(transactional=False)
    bench.broker.transactions.set_check_back("t", policy, bench.now_ms)
    half, begin_ms = bench.send(), bench.now_ms
    asked_ms = []
    for at_ms in range(100, 4_700, 100):
        asked = bench.pass_time(100)
        assert [one.transaction_id for one in asked] in ([], [half.transaction_id])
        if asked:
            asked_ms.append(at_ms)
            if restarts:
                bench.restart()
        view = bench.broker.half_views.get_half(half.transaction_id)
        assert (view.state, view.check_count) == (State.OPEN, len(asked_ms))
    assert asked_ms == [500, 900, 1_700, 3_200]
    assert bench.pass_time(100) == []
    view = bench.broker.half_views.get_half(half.transaction_id)
    assert (view.state, view.ended_ms) == (State.EXPIRED, begin_ms + 4_700)


def test_a_producer_that_came_is_asked_about_one_half_after_the_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first by its coming, each next by the answer before it: its queue does not fill up at once."""
    monkeypatch.setattr(limits, "CHECKS_WOKEN_MAX", 1)
    halves = [bench.send().transaction_id for _ in range(4)]
    bench.now_ms += 500  # due at this very moment
    for question in bench.broker.tick(bench.now_ms):
        assert isinstance(question, CheckBackRequest)
        bench.broker.transactions.complete_check_back(question.transaction_id, False, bench.now_ms)
    assert bench.pass_time(0) == bench.pass_time(10_000) == [], "nobody is there"
    bench.broker.transactions.schedule_waiting_check_backs("t", bench.now_ms)
    for half in halves:
        assert [one.transaction_id for one in bench.pass_time(0)] == [half]
    assert bench.pass_time(0) == []


@pytest.mark.parametrize(("bytes_max", "by_tick"), [(200, [2, 4, 5]), (201, [3, 5]), (1, [1, 2, 3, 4, 5])])
def test_a_tick_reads_no_more_halves_that_expire_than_it_may(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, bytes_max: int, by_tick: list[int]
) -> None:
    """It reads until the bodies have so many bytes, and one half at least."""
    monkeypatch.setattr(limits, "CHECKS_READ_PER_TICK_BYTES_MAX", bytes_max)
    for _ in range(5):
        bench.send(body=b"x" * 100)
    for _ in range(2):
        assert len(bench.pass_time(600)) == 5
    bench.now_ms += 600
    expired = []
    for _ in by_tick:
        assert bench.pass_time(0) == []
        expired.append(len(bench.broker.half_views.page(HalfFilter(state=State.EXPIRED), None, 9).halves))
    assert expired == by_tick


def test_a_half_of_which_a_checkpoint_does_not_tell_the_message_is_read_before_it_is_asked_about(
    bench: Bench,
) -> None:
    """A checkpoint of an older version has no CRC of the message id."""
    half = bench.send()
    outcomes = bench.broker.transactions.outcomes
    [offset] = outcomes.open
    waiting = outcomes.waiting(offset)
    assert waiting is not None
    outcomes.open.put(offset, tuple(waiting._replace(id_crc=-1)))
    assert [one.transaction_id for one in bench.pass_time(500)] == [half.transaction_id]
    assert bench.broker.half_views.get_half(half.transaction_id).check_count == 1
