"""What a client can make grow has a bound, and what is above it is refused, cut or forgotten: one row each.

Bounds by bytes of answers and queues: `rpc/test_receive_bytes.py`, `rpc/test_check_backs.py`,
`live/test_append_quota.py`, `ops/test_looks_bounded.py`; of clients' metrics: `rpc/test_exports_bounded.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog import limits
from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.spine.errors import TooManyGroups, TooManyHalves, TooManyTopics
from services.broker.spine.values import Resolution, SendReceipt
from services.live.clients.check_back_log import CheckBackLog
from services.rpc.clients.handover import PendingLease
from services.rpc.clients.sessions import Sessions
from services.rpc.handlers.receiving import remember
from services.rpc.wire.caller import Caller
from tests.applied import limited
from tests.unit.services.broker.groups.test_receiving import NOW_MS, Bench
from tidewheel.errors import TidewheelError

Act = Callable[[Bench, int], object]


def make_topic(bench: Bench, number: int) -> None:
    bench.broker.topics.create(f"t{number}", MessageType.NORMAL, 1, NOW_MS)


def use_topic(bench: Bench, number: int) -> None:
    bench.broker.topics.get_or_create(f"t{number}", NOW_MS)


def receive(bench: Bench, number: int) -> None:
    bench.receive(f"g{number}")


def make_group(bench: Bench, number: int) -> None:
    bench.broker.group_views.create(f"g{number}", "", GroupStart(), NOW_MS)


def set_group(bench: Bench, number: int) -> None:
    bench.broker.group_views.set_policy(f"g{number}", GroupPolicy(), NOW_MS)


def send_half(bench: Bench, number: int) -> None:
    bench.send(transactional=True)


@pytest.mark.parametrize(
    ("bound", "act", "error"),
    [
        ("TOPICS_MAX", make_topic, TooManyTopics),
        ("TOPICS_MAX", use_topic, TooManyTopics),
        ("SUBSCRIPTIONS_MAX", receive, TooManyGroups),
        ("SUBSCRIPTIONS_MAX", make_group, TooManyGroups),
        ("SUBSCRIPTIONS_MAX", set_group, TooManyGroups),
        ("HALVES_WAITING_MAX", send_half, TooManyHalves),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_at_the_bound_it_works_and_one_more_is_refused(
    bound: str, act: Act, error: type[TidewheelError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, bound, 3)
    bench = Bench()
    for number in range(3):
        act(bench, number)
    bench.flush()
    before = bench.broker.end_offset
    with pytest.raises(error):
        act(bench, 3)
    assert bench.broker.end_offset <= before + 400, "no more than the topic that it was for"
    bench.reopen()
    with pytest.raises(error):
        act(bench, 4)


def test_what_a_store_has_from_before_the_bound_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(3):
        make_topic(bench, number)
        make_group(bench, number)
        send_half(bench, number)
    bench.flush()
    for bound in ("TOPICS_MAX", "SUBSCRIPTIONS_MAX", "HALVES_WAITING_MAX"):
        monkeypatch.setattr(limits, bound, 1)
    bench.reopen()
    assert (len(bench.broker.topics.all()), len(bench.broker.group_views.view_all())) == (4, 3)
    assert bench.broker.gauges().open_halves == 3


def test_a_half_that_ends_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HALVES_WAITING_MAX", 1)
    bench = Bench()
    sent: list[SendReceipt] = []
    send, bench.broker.sending.send = bench.broker.sending.send, lambda *given: sent.append(send(*given))  # type: ignore[method-assign]
    send_half(bench, 0)
    [half] = sent
    bench.broker.transactions.end("t", half.transaction_id, half.message_id, Resolution.ROLLBACK, NOW_MS)
    send_half(bench, 1)


def test_the_receipts_of_so_many_halves_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, half_receipts_max=3)
    bench = Bench()
    for number in range(10):
        send_half(bench, number)
    kept = [key.split("\x00")[1] for key in bench.broker.transactions.receipts._rows]
    assert kept == ["M8", "M9", "M10"]


def test_of_a_client_so_many_streams_and_last_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_PER_CLIENT_MAX", 3)
    monkeypatch.setattr(limits, "LEASES_PER_CLIENT_MAX", 3)
    sessions = Sessions(lambda: NOW_MS)
    streams = [sessions.open_stream(Caller("c")) for _ in range(5)]
    assert [one.is_over for one in streams] == [True, True, False, False, False]
    session = sessions.seen(Caller("c"))
    for number in range(5):
        remember(session, PendingLease("g", f"t{number}", "a", ["handle"]))
    assert [topic for _, topic in session.lent] == ["t2", "t3", "t4"]


def test_so_many_questions_to_producers_are_remembered() -> None:
    log = CheckBackLog(3)
    for number in range(10):
        log.record_check_back(f"T{number}", "t", "producer", NOW_MS)
    assert [one.transaction_id for one in log.newest_check_backs("", 100)] == ["T9", "T8", "T7"]


def test_who_looks_makes_nothing() -> None:
    bench = Bench()
    bench.broker.topics.create("wide", MessageType.MIXED, 100, NOW_MS)
    bench.broker.group_views.create("g", "wide", GroupStart(), NOW_MS)
    bench.broker.group_views.view_group("g")
    bench.broker.group_views.view_all()
    for queue_id in range(100):
        assert bench.broker.finding.queue_range("wide", queue_id) == (0, 0)
        assert bench.broker.finding.read("wide", queue_id, 0, 10) == []
    assert (len(bench.broker.store.dispatch._queues), len(bench.broker.groups.filters._sets)) == (0, 0)
