"""`explain`: the life of an order from a real broker's log, whatever name it is asked for by."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import NotAStore
from consumequeue.filters.filter import EVERYTHING, parse_tags
from services.broker.spine.errors import MessageNotFound
from services.broker.spine.values import Resolution
from services.cli.main import main
from services.cli.messages.explain import lines
from services.explain.evidence import SearchedLog
from services.explain.explain import Explanation, explain
from services.shop.topics import CARTS_GROUP, ORDER_CREATED, ORDER_TIMEOUTS
from tests.spark.conftest import TIMEOUT_MS
from tidewheel.durations import rounded
from tidewheel.errors import ClientMistake, TransactionEnded
from txn.checkback import CheckBackPolicy

Shop = Any


def told(shop: Shop, name: str, topic: str = "") -> Explanation:
    return explain(SearchedLog.at(shop.store), name, topic)


def happened(found: Explanation) -> list[tuple[str, str]]:
    return [(one.topic, one.what) for one in found.events]


def states(found: Explanation) -> dict[str, str]:
    return {one.topic: one.state for one in found.messages}


def test_a_paid_order_from_its_halves_to_the_cancel_of_its_deadline(traded: Shop) -> None:
    found = told(traded, "p1")
    assert happened(found) == [
        ("order-created", "half"),
        ("order-timeouts", "half"),
        ("order-created", "committed"),
        ("order-timeouts", "armed"),
        ("order-created", "acknowledged"),
        ("order-paid", "half"),
        ("order-paid", "committed"),
        ("order-timeouts", "cancelled"),
    ]
    assert states(found) == {
        "order-created": "acknowledged by shop-carts",
        "order-timeouts": "cancelled: nobody gets it",
        "order-paid": "acknowledged by nobody yet",
    }


def test_a_timed_out_order_says_how_late_its_deadline_came(traded: Shop) -> None:
    found = told(traded, "t2", ORDER_TIMEOUTS)
    assert [one.what for one in found.events] == ["half", "armed", "delivered", "acknowledged"]
    armed, delivered = found.events[1], found.events[2]
    assert armed.due_ms is not None
    assert delivered.note.startswith(f"{rounded(delivered.store_ms - armed.due_ms)} after its time")
    assert f"timer @{armed.physical_offset:,}" in delivered.note


def test_a_deadline_that_was_armed_after_its_time_says_so(shop: Shop) -> None:
    half = shop.half_deadline("o")
    shop.advance(TIMEOUT_MS + 70_000)
    shop.end(half, Resolution.COMMIT)
    shop.advance(7)
    sent, armed, delivered = told(shop, "order:o").events
    assert armed.note == f"by the half @{sent.physical_offset:,}, 1m10s after its time"
    assert delivered.note.startswith("1m10s after its time")


def test_every_event_lies_where_it_says(traded: Shop) -> None:
    log = SearchedLog.at(traded.store)
    for event in told(traded, "p1").events:
        record = log.record_at(event.physical_offset)
        assert record is not None
        assert (record.physical_offset, record.store_ms) == (event.physical_offset, event.store_ms)


def test_it_goes_by_every_name(traded: Shop) -> None:
    half = traded.half_payment("t1")
    traded.end(half, Resolution.ROLLBACK)
    by_id = told(traded, half.message_id)
    assert happened(by_id) == [("order-paid", "half"), ("order-paid", "rolled back")]
    for name in (half.transaction_id, f"@{by_id.events[0].physical_offset:,}"):
        assert told(traded, name).events == by_id.events
    assert happened(told(traded, "order:p2")) == [
        ("order-timeouts", what) for what in ("half", "armed", "cancelled")
    ]


def test_a_timer_that_nobody_could_read_any_more_is_lost_not_cancelled(shop: Shop) -> None:
    due_ms = shop.now_ms + 60_000
    sent = shop.send(ORDER_TIMEOUTS, "o1", {"order_id": "o1"}, delivery_ms=due_ms)
    shop.broker.timers.end_unreadable_timer("", sent.physical_offset, due_ms, shop.now_ms)
    shop.flush()
    found = told(shop, "o1")
    assert happened(found) == [(ORDER_TIMEOUTS, "armed"), (ORDER_TIMEOUTS, "lost")]
    assert states(found)[ORDER_TIMEOUTS].startswith("lost: nobody had its record any more")


def test_an_open_half_is_undecided_and_says_how_often_its_producer_was_asked(shop: Shop) -> None:
    half = shop.half("o1", "c", {"apple": 1})
    for _ in range(2):
        shop.broker.transactions.complete_check_back(half.transaction_id, True, shop.now_ms)
        shop.flush()
    found = told(shop, "o1")
    assert [one.what for one in found.events] == ["half", "asked", "asked"]
    assert found.messages[0].state.endswith("its producer was asked 2 times")
    shop.end(half, Resolution.COMMIT)
    assert states(told(shop, "o1")) == {"order-created": "acknowledged by nobody yet"}


def test_an_end_that_came_too_late_for_a_half_is_told_and_changes_nothing(shop: Shop) -> None:
    policy = CheckBackPolicy(immunity_ms=0, interval_ms=1, count_max=1)
    shop.broker.transactions.set_check_back(ORDER_CREATED, policy, shop.now_ms)
    half = shop.half("o1", "c", {"apple": 1})
    shop.broker.transactions.complete_check_back(half.transaction_id, True, shop.now_ms)
    shop.now_ms += 1_000
    shop.broker.tick(shop.now_ms)
    for how in Resolution:
        with pytest.raises(TransactionEnded, match="EXPIRED"):
            shop.end(half, how)
    shop.flush()
    found = told(shop, "o1")
    assert [one.what for one in found.events] == ["half", "asked", "expired", "refused", "refused"]
    assert states(found)["order-created"].startswith("expired")


def test_attempts_that_fail_and_the_dead_letter_that_comes_of_them(shop: Shop) -> None:
    shop.place("o1", "c", {"apple": 1})
    for _ in range(2):
        (delivery,) = shop.broker.receiving.receive(
            CARTS_GROUP, ORDER_CREATED, EVERYTHING, 1, 60_000, "client-7", False, shop.now_ms
        ).deliveries
        shop.flush()
        shop.advance(60_001)
    (delivery,) = shop.broker.receiving.receive(
        CARTS_GROUP, ORDER_CREATED, EVERYTHING, 1, 60_000, "client-7", False, shop.now_ms
    ).deliveries
    shop.broker.receiving.forward_to_dead_letter(
        CARTS_GROUP, ORDER_CREATED, delivery.receipt_handle, shop.now_ms
    )
    shop.flush()
    found = told(shop, "o1", ORDER_CREATED)
    ended = [one for one in found.events if one.what == "attempt ended"]
    assert ended[0].note == ("attempt 1 of group shop-carts, client client-7: not acknowledged in time")
    assert [one.group for one in found.events if one.what == "dead letter"] == [CARTS_GROUP]
    assert states(found)[ORDER_CREATED].startswith("given up")


def test_what_a_filter_passed_over_was_not_acknowledged(shop: Shop) -> None:
    shop.place("o1", "c", {"apple": 1})
    wanted = parse_tags("nothing"), 1, 60_000, "client-7", False, shop.now_ms
    assert shop.broker.receiving.receive(CARTS_GROUP, ORDER_CREATED, *wanted).deliveries == []
    shop.flush()
    assert shop.broker.groups.lag()[ORDER_CREATED, CARTS_GROUP] == 0
    assert "acknowledged" not in {what for _, what in happened(told(shop, "o1", ORDER_CREATED))}


def test_another_name_that_holds_it_is_another_name(shop: Shop) -> None:
    for order_id in ("o1", "o11", "xo1"):
        shop.place(order_id, order_id, {"o1": 1})
    ids = {one.keys for one in told(shop, "o1").messages}
    assert ids == {"o1"}


def test_a_torn_record_is_stepped_over(traded: Shop) -> None:
    whole = told(traded, "p1")
    first = min(path.name for path in (traded.store / "commitlog").iterdir())
    path = traded.store / "commitlog" / first
    stored = bytearray(path.read_bytes())
    stored[whole.events[0].physical_offset + 60] ^= 1
    path.write_bytes(stored)
    assert happened(told(traded, "p1")) == happened(whole)[1:]


def test_what_is_not_there_says_where_was_looked(traded: Shop) -> None:
    with pytest.raises(MessageNotFound) as raised:
        told(traded, "nobody")
    run("explain", "nobody", "--store", str(traded.store), exit_code=4)
    assert "'nobody'" in str(raised.value)
    assert f"0 to {SearchedLog.at(traded.store).end_offset}" in str(raised.value)


@pytest.mark.parametrize("name", ["", " ", "a\x01b", "x" * 2_000])
def test_what_can_be_no_name_is_refused(traded: Shop, name: str) -> None:
    with pytest.raises(ClientMistake):
        told(traded, name)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        SearchedLog.at(tmp_path)


def test_the_command_tells_it_in_lines_and_as_json(traded: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    run("explain", "p1", "--store", str(traded.store), "--json")
    events = json.loads(capsys.readouterr().out)["events"]
    assert events[-1]["what"] == "cancelled"
    assert {one["epoch"] for one in events} == {None}, "the store was always alone"
    run("explain", "p1", "--store", str(traded.store))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("p1: 8 events of 3 messages, in log offsets 0 to")
    assert any("acknowledged: by group shop-carts, queue 1 offset 0" in line for line in shown)
    assert not any("epoch" in line or "alone" in line for line in shown)


def test_what_happened_in_epochs_of_a_cluster_is_told_apart_also_of_too_many_records(
    traded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = len(told(traded, "t1").events)
    for epoch in (3, 7):
        traded.broker.epoch.raise_to(epoch, traded.now_ms)
        traded.flush()
        traded.end(traded.half_payment("t1"), Resolution.ROLLBACK)
    events = told(traded, "t1").as_json()["events"]
    assert [one["epoch"] for one in events] == [0] * alone + [3, 3, 7, 7]
    monkeypatch.setattr("services.explain.explain.RECORDS_MAX", 1)
    cut = told(traded, "t1")
    assert cut.is_cut
    assert [one.number for one in cut.epochs] == [0, 3, 7]


def test_the_search_misses_nothing_that_a_window_cuts(traded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = happened(told(traded, "p1"))
    for window_bytes in (64, 97, 500):
        monkeypatch.setattr("services.explain.evidence.WINDOW_BYTES", window_bytes)
        assert happened(told(traded, "p1")) == whole


def test_gaps_are_those_between_neighbours(traded: Shop) -> None:
    events = told(traded, "p1").as_json()["events"]
    assert sum(int(one["gap_ms"]) for one in events) == int(events[-1]["store_ms"]) - int(
        events[0]["store_ms"]
    )
    assert len(lines(events)) == len(events)


def run(*arguments: str, exit_code: int = 0) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert (exited.value.code or 0) == exit_code


def names(folder: Path) -> Iterable[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_store_is_read_and_nothing_is_written(traded: Shop, tmp_path: Path) -> None:
    copied = shutil.copytree(traded.store, tmp_path / "copied")
    before = names(copied)
    explain(SearchedLog.at(copied), "p1")
    assert names(copied) == before
