"""Orders, carts and pushes against a real broker: what is promised, also when something dies on the way."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from sqlalchemy import create_engine, text

from services.shop.clock import wall_clock_ms
from services.shop.database import open_database, sqlite_url
from services.shop.demo.processes import tidewheel
from services.shop.demo.story import create_topic
from services.shop.generated import shop_pb2
from services.shop.pushes.schedules import PushSchedules
from tests.command import tidewheel as command
from tidewheel.errors import BrokerUnreachable

if TYPE_CHECKING:
    from pathlib import Path


def order(order_id: str) -> shop_pb2.OrderRequest:
    return shop_pb2.OrderRequest(order_id=order_id)


def refusal(verb: Any, request: Any) -> tuple[grpc.StatusCode, str | None]:
    """How a service refuses a request."""
    with pytest.raises(grpc.RpcError) as refused:
        verb(request)
    return refused.value.code(), refused.value.details()


def test_an_order_leaves_the_cart_and_is_paid(shop: Any, eventually: Any) -> None:
    shop.start("orders")
    shop.start("carts")
    shop.add("a1", quantity=5)
    assert shop.place("O1").status == "PLACED"
    eventually(lambda: shop.cart() == {"85123A": 2})
    assert shop.orders.Pay(order("O1")).status == "PAID"
    assert shop.gauge("rocketmq_timing_messages") == 0, "the deadline was called off"
    assert shop.orders.Get(order("O1")).total_pence == 3 * 255 + 1275


def test_what_is_repeated_changes_nothing(shop: Any, eventually: Any) -> None:
    shop.start("orders")
    shop.start("carts")
    for _ in range(2):
        shop.add("a1", quantity=5)
        shop.place("O1")
    for _ in range(2):
        assert shop.orders.Pay(order("O1")).status == "PAID"
    eventually(lambda: shop.cart() == {"85123A": 2})
    for _ in range(2):
        assert shop.orders.Cancel(order("O1")).status == "CANCELLED"
    assert shop.rows("SELECT COUNT(*) FROM orders") == [(1,)]


def test_an_unpaid_order_times_out_and_cannot_be_paid_later(shop: Any, eventually: Any) -> None:
    shop.start("orders")
    due_ms = shop.place("O1", timeout_ms=1).due_ms
    eventually(lambda: shop.orders.Get(order("O1")).status == "TIMED_OUT")
    ((timed_out_ms,),) = shop.rows("SELECT timed_out_ms FROM orders")
    assert timed_out_ms >= due_ms, "it came early"
    code, words = refusal(shop.orders.Pay, order("O1"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert (
        words
        == "TW-160 What has already happened forbids this. Order O1 is TIMED_OUT and cannot become PAID."
    )


def halves(shop: Any, topic: str, order_id: str) -> list[tuple[str, str]]:
    """The state of each transaction of an order, and the timer verb or key that it carries."""
    shown = command("txn", "show", order_id, "--topic", topic, "--http", shop.http, "--json")
    assert shown.returncode == 0, shown.stderr
    return [(one["state"], timer_of(one["message"]["properties"])) for one in json.loads(shown.stdout)]


def timer_of(properties: dict[str, str]) -> str:
    """What of a message's properties, which come in any order, is about timers."""
    named = sorted(properties.items())
    return " ".join(f"{name}={value}" for name, value in named if name.startswith("TW_TIMER"))


def test_a_payment_that_comes_too_late_is_rolled_back_and_stays_to_be_seen(
    shop: Any, eventually: Any
) -> None:
    shop.start("orders")
    shop.place("O1", timeout_ms=1)
    eventually(lambda: shop.orders.Get(order("O1")).status == "TIMED_OUT")
    refusal(shop.orders.Pay, order("O1"))
    cancel = "TW_TIMER_CANCEL=order:O1 TW_TIMER_TOPIC=order-timeouts"
    assert halves(shop, "order-paid", "O1") == [("ROLLED_BACK", cancel)]
    assert halves(shop, "order-timeouts", "O1") == [("COMMITTED", "TW_TIMER_KEY=order:O1")]


def test_rivals_with_one_order_id_make_one_order_and_one_deadline(shop: Any, eventually: Any) -> None:
    shop.start("orders")
    with ThreadPoolExecutor(8) as rivals:
        placed = list(rivals.map(lambda _: shop.place("O1").status, range(8)))
        assert placed == ["PLACED"] * 8
        assert shop.rows("SELECT COUNT(*) FROM orders") == [(1,)]
        eventually(lambda: shop.gauge("rocketmq_half_messages") == 0)
        assert shop.gauge("rocketmq_timing_messages") == 1
        paid = list(rivals.map(lambda _: shop.orders.Pay(order("O1")).status, range(8)))
    assert paid == ["PAID"] * 8
    eventually(lambda: shop.gauge("rocketmq_half_messages") == 0)
    assert shop.gauge("rocketmq_timing_messages") == 0
    for topic in ("order-created", "order-timeouts", "order-paid"):
        states = [state for state, _ in halves(shop, topic, "O1")]
        assert states.count("COMMITTED") == 1
        assert set(states) <= {"COMMITTED", "ROLLED_BACK"}


def test_what_cannot_be_is_refused_with_a_code(shop: Any) -> None:
    shop.start("orders")
    shop.place("O1")
    other = shop_pb2.PlaceRequest(
        order_id="O1", customer_id="C2", lines=[shop_pb2.Line(sku="1", quantity=1, unit_price_pence=1)]
    )
    empty = shop_pb2.PlaceRequest(order_id="O 2", customer_id="C2")
    assert refusal(shop.orders.Place, other)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal(shop.orders.Place, empty)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(shop.orders.Get, order("O9")) == (
        grpc.StatusCode.NOT_FOUND,
        "TW-150 It was not found. There is no order O9.",
    )


ENDS_WITHIN_SECONDS = 60
BEFORE_COMMIT = ("die-between-halves", "die-after-halves", "die-after-row", "die-before-commit")
AFTER_COMMIT = ("die-after-commit", "die-between-ends")
PAYING_BEFORE_COMMIT = ("die-paying-after-half", "die-paying-after-row", "die-paying-before-commit")
PAYING_AFTER_COMMIT = "die-paying-after-commit"


def die(shop: Any, eventually: Any, verb: Any, deaths: int) -> None:
    """Call a verb in the middle of which the service dies, and wait until every half has ended."""
    with pytest.raises(grpc.RpcError) as died:
        verb()
    assert died.value.code() is grpc.StatusCode.UNAVAILABLE
    eventually(lambda: shop.processes.restarts() == deaths)
    eventually(lambda: shop.gauge("rocketmq_half_messages") == 0)


def test_a_death_before_the_database_commit_takes_message_and_deadline_back(
    shop: Any, eventually: Any
) -> None:
    shop.start("orders", *(f"{step}@1" for step in BEFORE_COMMIT))
    shop.start("carts")
    shop.add("a1", quantity=5)
    for deaths in range(1, len(BEFORE_COMMIT) + 1):
        die(shop, eventually, partial(shop.place, "O1"), deaths)
        assert shop.rows("SELECT * FROM orders") == []
        assert shop.gauge("rocketmq_timing_messages") == 0
    assert shop.rows("SELECT DISTINCT outcome FROM tidewheel_barrier") == [("ROLLED_BACK",)]
    assert shop.cart() == {"85123A": 5}
    shop.place("O1")
    eventually(lambda: shop.cart() == {"85123A": 2})
    assert shop.gauge("rocketmq_timing_messages") == 1


def test_a_death_after_the_database_commit_delivers_the_message_and_sets_the_deadline(
    shop: Any, eventually: Any
) -> None:
    shop.start("orders", *(f"{step}@1" for step in AFTER_COMMIT))
    shop.start("carts")
    shop.add("a1", quantity=3 * len(AFTER_COMMIT))
    for deaths in range(1, len(AFTER_COMMIT) + 1):
        die(shop, eventually, partial(shop.place, f"O{deaths}"), deaths)
        assert shop.rows("SELECT status FROM orders") == [("PLACED",)] * deaths
        assert shop.gauge("rocketmq_timing_messages") == deaths
    eventually(lambda: shop.cart() == {})


def test_a_death_in_paying_pays_and_cancels_the_deadline_or_does_neither(shop: Any, eventually: Any) -> None:
    shop.start("orders", *(f"{step}@1" for step in (*PAYING_BEFORE_COMMIT, PAYING_AFTER_COMMIT)))
    shop.place("O1")

    def pay() -> Any:
        return shop.orders.Pay(order("O1"), wait_for_ready=True)

    for deaths in range(1, len(PAYING_BEFORE_COMMIT) + 1):
        die(shop, eventually, pay, deaths)
        assert shop.rows("SELECT status, paid_ms FROM orders") == [("PLACED", None)]
        assert shop.gauge("rocketmq_timing_messages") == 1
    die(shop, eventually, pay, len(PAYING_BEFORE_COMMIT) + 1)
    assert shop.rows("SELECT status FROM orders") == [("PAID",)]
    assert shop.gauge("rocketmq_timing_messages") == 0
    assert pay().status == "PAID"


def test_a_cart_crash_before_the_ack_leaves_what_the_customer_adds_again(shop: Any, eventually: Any) -> None:
    shop.start("orders")
    shop.start("carts", "die-before-ack@1")
    shop.add("a1", quantity=3)
    shop.place("O1")
    eventually(lambda: shop.processes.restarts() == 1)
    assert shop.cart() == {}
    shop.add("a2", quantity=3)
    eventually(lambda: '"repeated"' in shop.log_of("carts"))
    eventually(lambda: shop.gauge("rocketmq_consumer_inflight_messages") == 0)
    assert shop.cart() == {"85123A": 3}


def test_two_messages_of_one_order_have_one_effect(shop: Any, eventually: Any) -> None:
    shop.start("orders", "repeat-as-new/1,repeat-same-id/1")
    shop.start("carts")
    shop.add("a1", quantity=9)
    shop.place("O1")
    eventually(lambda: '"repeated"' in shop.log_of("carts"))
    assert shop.cart() == {"85123A": 6}
    assert shop.rows("SELECT outcome FROM tidewheel_barrier") == [("COMMITTED",)] * 3


def test_a_push_comes_once_at_its_time_or_not_at_all(shop: Any, eventually: Any) -> None:
    shop.start("pushes")
    now_ms = wall_clock_ms()
    for push_id in ("P1", "P1", "P2"):
        request = shop_pb2.SendRequest(push_id=push_id, customer_id="C1", text="Sale", due_ms=now_ms + 1_000)
        assert shop.pushes.Send(request).status == "SCHEDULED"
    shop.pushes.Cancel(shop_pb2.PushRequest(push_id="P2"))
    eventually(lambda: shop.pushes.Get(shop_pb2.PushRequest(push_id="P1")).status == "DELIVERED")
    delivered = shop.pushes.Get(shop_pb2.PushRequest(push_id="P1"))
    assert delivered.delivered_ms >= delivered.due_ms >= now_ms + 1_000
    assert shop.pushes.Get(shop_pb2.PushRequest(push_id="P2")).status == "CANCELLED"
    code, words = refusal(shop.pushes.Cancel, shop_pb2.PushRequest(push_id="P1"))
    assert (code, "DELIVERED" in str(words)) == (grpc.StatusCode.FAILED_PRECONDITION, True)


def test_a_schedule_has_one_pending_push_until_it_is_cancelled(shop: Any, eventually: Any) -> None:
    shop.start("pushes")
    request = shop_pb2.ScheduleRequest(
        schedule_id="S1", customer_id="C1", text="Again", cron="* * * * * *", time_zone="Europe/London"
    )
    first = shop.pushes.Schedule(request)
    assert first.push_id == f"S1@{first.due_ms}"
    eventually(lambda: shop.log_of("pushes").count('"delivered": true') >= 3)
    assert shop.gauge("rocketmq_timing_messages") <= 1
    ended = shop.pushes.CancelSchedule(shop_pb2.ScheduleReference(schedule_id="S1"))
    assert (ended.active, ended.delivered_count >= 3) == (False, True)
    eventually(lambda: shop.gauge("rocketmq_timing_messages") == 0)
    assert refusal(shop.pushes.Schedule, request)[0] is grpc.StatusCode.FAILED_PRECONDITION


def schedule_of(schedule_id: str, cron: str = "* * * * * *", zone: str = "UTC") -> shop_pb2.ScheduleRequest:
    return shop_pb2.ScheduleRequest(
        schedule_id=schedule_id, customer_id="C1", text="Again", cron=cron, time_zone=zone
    )


def test_a_schedule_is_kept_by_the_broker_while_the_shop_sleeps(shop: Any, eventually: Any) -> None:
    shop.start("pushes")
    first = shop.pushes.Schedule(schedule_of("S/1"))
    again = shop.pushes.Schedule(schedule_of("S/1"))
    assert (again.due_ms >= first.due_ms, first.status) == (True, "SCHEDULED")
    eventually(lambda: shop.log_of("pushes").count('"delivered": true') >= 2)
    shop.processes.stop("pushes")
    slept_from_ms = wall_clock_ms()
    time.sleep(9)
    woken_ms = wall_clock_ms()
    shop.start("pushes")
    eventually(lambda: shop.rows_of_pushes(f"due_ms > {woken_ms}"))
    missed = shop.rows_of_pushes(f"due_ms BETWEEN {slept_from_ms + 1000} AND {woken_ms - 7000}")
    assert missed == [], "what was overtaken by a later occurrence was delivered, too"
    rows = shop.rows_of_pushes("schedule_id = 'S/1'")
    assert all(delivered_ms >= due_ms for _, due_ms, delivered_ms in rows)
    assert len({push_id for push_id, _, _ in rows}) == len(rows)
    assert all(push_id == f"S/1@{due_ms}" for push_id, due_ms, _ in rows)
    del shop.pushes  # the stub of the service that was stopped
    shop.pushes.CancelSchedule(shop_pb2.ScheduleReference(schedule_id="S/1"))
    assert PushSchedules(shop.http).names() == set()


def test_broker_and_rows_are_made_to_agree_when_the_shop_starts(shop: Any, eventually: Any) -> None:
    shop.start("pushes")
    for schedule_id in ("lost", "ended"):
        shop.pushes.Schedule(schedule_of(schedule_id, "0 0 1 1 *"))
    shop.processes.stop("pushes")
    kept = PushSchedules(shop.http)
    kept.end("lost")
    with open_database(sqlite_url(shop.layout.pushes_database)).begin() as connection:
        connection.execute(text("UPDATE push_schedules SET active = false WHERE schedule_id = 'ended'"))
    assert kept.names() == {"pushes:ended"}
    shop.start("pushes")
    assert kept.names() == {"pushes:lost"}


def test_a_schedule_that_cannot_be_is_refused_and_leaves_no_row(shop: Any) -> None:
    shop.start("pushes")
    for request, words in (
        (schedule_of("S1", zone="Mars/Base"), "TW-149 The schedule is illegal."),
        (schedule_of("S1", "0 0 30 2 *"), "TW-130"),
        (schedule_of("S 1"), "TW-130"),
    ):
        code, said = refusal(shop.pushes.Schedule, request)
        assert (code, words in str(said)) == (grpc.StatusCode.INVALID_ARGUMENT, True), said
    assert shop.pushes.Schedule(schedule_of("S1", "0 0 1 1 *")).push_id.startswith("S1@")
    other = schedule_of("S1", "0 0 2 1 *")
    assert refusal(shop.pushes.Schedule, other)[0] is grpc.StatusCode.FAILED_PRECONDITION
    unknown = shop_pb2.ScheduleReference(schedule_id="S9")
    assert refusal(shop.pushes.CancelSchedule, unknown)[0] is grpc.StatusCode.NOT_FOUND


def test_without_the_brokers_http_only_recurring_pushes_are_refused() -> None:
    with pytest.raises(BrokerUnreachable, match="There is no Tidewheel HTTP interface"):
        PushSchedules("127.0.0.1:1").occurs("* * * * *", "UTC")


def ended(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A `tidewheel shop` command that is expected to end by itself."""
    command = tidewheel("shop", *arguments)
    environment = os.environ | {"HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=ENDS_WITHIN_SECONDS
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--broker", "127.0.0.1:1"), 3, "TW-123 No broker answers. Nothing listens at 127.0.0.1:1"),
        (("--broker", "nonsense"), 3, "TW-123"),
        (("--database", "nonsense"), 2, "TW-120 A setting cannot be used. Database nonsense"),
        (("--database", "oracle9://x"), 2, "TW-120"),
    ],
)
def test_a_service_that_cannot_start_says_why(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, words: str
) -> None:
    done = ended(tmp_path, "orders", "--listen", "127.0.0.1:0", *arguments)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1


def test_a_taken_port_is_told(shop: Any, tmp_path: Path) -> None:
    shop.start("orders")
    taken = shop.addresses["orders"]
    done = ended(tmp_path, "pushes", "--broker", shop.broker, "--listen", taken)
    assert done.returncode == 3
    assert f"TW-101 The port is in use. {taken} is used by process" in done.stderr


def test_a_missing_topic_is_told(shop: Any, tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "strict"), "--http", "127.0.0.1:0", "--no-auto-create")
    strict = shop.processes.start("serve", *options, name="strict")
    done = ended(tmp_path, "pushes", "--broker", strict["listen"], "--listen", "127.0.0.1:0")
    assert done.returncode == 4
    assert "TW-151 The topic does not exist. The broker has no topic pushes." in done.stderr


def test_a_topic_of_another_type_is_told(shop: Any, tmp_path: Path) -> None:
    ready = shop.processes.start(
        "serve", "--store", str(tmp_path / "old"), "--http", "127.0.0.1:0", name="old"
    )
    create_topic(ready["http"], "order-timeouts", "DELAY")
    done = ended(tmp_path, "orders", "--broker", ready["listen"], "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.startswith("TW-120")
    assert "order-timeouts takes DELAY messages, and the shop sends transactions to it." in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_database_of_another_version_is_told(shop: Any, tmp_path: Path) -> None:
    engine = create_engine(sqlite_url(tmp_path / "orders.db"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (order_id TEXT, colour TEXT)"))
    done = ended(tmp_path, "orders", "--broker", shop.broker, "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert "is of another version: it differs in cancelled_ms, colour, customer_id," in done.stderr
    assert done.stderr.count("\n") == 1
