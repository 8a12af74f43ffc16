"""What plans propose for carts, ledgers and dead letters: nothing that makes a sound cart wrong."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.record import Record
from services.cli.root import load
from services.shop.carts.redis_server import bundled_redis
from spark_jobs.cases import names
from spark_jobs.inputs.mapping import ZONE, as_mapping
from spark_jobs.inputs.mapping_docs import every_name
from spark_jobs.layout import FINDING_COLUMNS
from spark_jobs.plan import plan
from spark_jobs.plan.sources import PlanSources
from tidewheel import property_names

Row = dict[str, Any]
NOTHING: Row = dict.fromkeys(FINDING_COLUMNS)
ORDER: Row = {
    "subject": "order",
    "subject_id": "o1",
    "order_id": "o1",
    "why": "Because.",
    "customer_id": "c1",
    "status": "PAID",
    "placed_ms": 1_000,
    "committed_offset": 50,
    "committed_ms": 1_010,
    "timeline": [],
}


def steps(case: str, sources: PlanSources | None = None, **facts: Any) -> list[Row]:
    row = NOTHING | ORDER | {"case": case} | facts
    return [step.as_json(row) for row, step in plan.planned([row], sources or PlanSources())]


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements; return the rows of the last, if it is a query."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(text(statement.replace(":", r"\:")))
        found = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return found


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A database in which order o1 has two apples."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    execute(url, "CREATE TABLE orders (order_id TEXT)")
    execute(url, "CREATE TABLE order_lines (order_id TEXT, sku TEXT, quantity INTEGER)")
    execute(url, "INSERT INTO order_lines VALUES ('o1', 'apple', 2)")
    return url


@pytest.mark.parametrize(
    ("cart", "ledger", "kind"), [(2, 0, "statement"), (0, 2, "statement"), (3, 0, "look")]
)
def test_a_cart_is_corrected_only_by_what_the_order_can_have_done(
    orders: str, cart: int, ledger: int, kind: str
) -> None:
    surplus = [{"sku": "apple", "cart": cart, "ledger": ledger}]
    (step,) = steps(names.CART_NOT_CLEARED, PlanSources(orders=orders), surplus=surplus)
    assert step["kind"] == kind


def test_a_cart_in_redis_is_corrected_only_while_it_holds_what_it_held(orders: str, tmp_path: Path) -> None:
    """A marker of the first correction once hid a second difference of the same size for 30 days."""
    surplus = [{"sku": "apple", "cart": 2, "ledger": 1}]
    (step,) = steps(names.CART_NOT_CLEARED, PlanSources(orders=orders), surplus=surplus)
    with bundled_redis(tmp_path / "redis") as url, Redis.from_url(url, decode_responses=True) as redis:
        for held, left in ((2, "1"), (1, "1"), (3, "3"), (2, "1")):
            redis.hset("cart:c1", "apple", held)
            redis.execute_command(*step["redis"])
            redis.execute_command(*step["redis"])
            assert redis.hgetall("cart:c1") == {"apple": left}
        assert redis.keys() == ["cart:c1"]


def test_an_article_that_a_cart_in_redis_lacks_is_put_in(orders: str, tmp_path: Path) -> None:
    surplus = [{"sku": "apple", "cart": 0, "ledger": 2}]
    (step,) = steps(names.EFFECT_TWICE, PlanSources(orders=orders), surplus=surplus)
    with bundled_redis(tmp_path / "redis") as url, Redis.from_url(url, decode_responses=True) as redis:
        redis.execute_command(*step["redis"])
        assert redis.hgetall("cart:c1") == {"apple": "2"}


def test_without_the_orders_lines_nobody_knows_what_a_cart_should_hold() -> None:
    (step,) = steps(names.EFFECT_TWICE, surplus=[{"sku": "apple", "cart": 0, "ledger": 1}])
    assert step["kind"] == "look"
    assert "--orders" in step["why"]


def test_a_difference_of_no_order_is_for_a_person() -> None:
    surplus = [{"sku": "apple", "cart": 1, "ledger": 0}]
    (step,) = steps(names.CART_DIFFERENCE, subject="cart", order_id=None, surplus=surplus)
    assert step["kind"] == "look"


def test_a_missing_entry_is_written_and_nothing_is_announced() -> None:
    (step,) = steps(names.LEDGER_ENTRY_MISSING, unwritten=[{"sku": "apple", "quantity": 2}])
    command, key, field, entry = step["redis"]
    assert (command, key, field) == ("HSETNX", "cart-ledger:c1", "order:o1")
    assert json.loads(entry) == {"removed": {"apple": 2}, "at_ms": 1_010}


def test_a_missing_entry_is_written_once_into_a_ledger_of_ones_own(orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'carts.db'}"
    columns = "buyer TEXT, move TEXT, ref TEXT, article TEXT, pieces INTEGER, moved TIMESTAMP"
    execute(url, f"CREATE TABLE basket_moves ({columns})")
    named = {"table": "basket_moves", "customer_id": "buyer", "entry": "move", "entry_id": "ref"}
    named |= {"sku": "article", "quantity": "pieces", "at_ms": "moved"}
    mapping = as_mapping({"ledger": named | {"entries": {"order": "minus"}}}, "a test")
    taken = [{"sku": "apple", "quantity": 2}, {"sku": "pear", "quantity": 1}]
    sources = PlanSources(mapping, orders=orders, carts=url)
    written = [step["statement"] for step in steps(names.LEDGER_ENTRY_MISSING, sources, unwritten=taken)]
    execute(url, *written, *written)
    assert execute(url, "SELECT buyer, move, ref, article, pieces FROM basket_moves ORDER BY article") == [
        ("c1", "minus", "o1", "apple", 2),
        ("c1", "minus", "o1", "pear", 1),
    ]


def test_a_push_is_corrected_although_its_table_is_in_another_database(orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pushes.db'}"
    execute(url, "CREATE TABLE pushes (push_id INTEGER, status TEXT, delivered_ms TIMESTAMP)")
    execute(url, "INSERT INTO pushes VALUES (7, 'SCHEDULED', NULL)")
    about = {"subject": "push", "subject_id": "7", "order_id": None, "status": "SCHEDULED"}
    delivered = {"delivered_offset": 70, "delivered_ms": 1_700_000_000_000}
    sources = PlanSources(orders=orders, pushes=url)
    (step,) = steps(names.PUSHES_DO_NOT_SUM, sources, **about, **delivered)
    execute(url, step["statement"])
    ((status, at),) = execute(url, "SELECT status, delivered_ms FROM pushes")
    assert (status, at[:19]) == ("DELIVERED", "2023-11-14 22:13:20")


@pytest.mark.parametrize("untaken", [{"dead_letter_offset": 90}, {"is_consumed": False}])
def test_a_push_that_was_given_up_or_still_waits_is_not_said_to_be_delivered(untaken: Row) -> None:
    about: Row = {"subject": "push", "subject_id": "7", "order_id": None, "status": "FAILED"}
    about |= {"delivered_offset": 70, "delivered_ms": 7_000} | untaken
    (step,) = steps(names.PUSHES_DO_NOT_SUM, **about)
    assert step["kind"] == "look"


def event(offset: int, kind: str, topic: str) -> Row:
    return {"physical_offset": offset, "store_ms": 1, "kind": kind, "topic": topic, "note": ""}


@pytest.mark.parametrize(
    ("dead", "groups"),
    [
        ({"dead_letter_offset": 10}, ["shop-carts"]),
        ({"deadline_dead_offset": 30}, ["shop-orders"]),
        ({"dead_letter_offset": 10, "deadline_dead_offset": 30}, ["shop-carts", "shop-orders"]),
        ({"dead_letter_offset": 10, "is_redelivered": True, "deadline_dead_offset": 30}, ["shop-orders"]),
        (
            {"dead_letter_offset": 10, "deadline_dead_offset": 30, "is_deadline_redelivered": True},
            ["shop-carts"],
        ),
    ],
)
def test_each_dead_letter_goes_back_to_the_group_that_gave_it_up(dead: Row, groups: list[str]) -> None:
    """In the timeline each has an acknowledgement behind it: that by which it was given up."""
    timeline = [
        event(10, "dead letter", "order-created"),
        event(20, "acknowledged", "order-created"),
        event(30, "dead letter", "order-timeouts"),
        event(40, "acknowledged", "order-timeouts"),
    ]
    redriven = steps(names.DEAD_LETTERED, timeline=timeline, **dead)
    assert [step["command"] for step in redriven] == [
        f"tidewheel dlq redrive {group} --key o1 --yes" for group in groups
    ]


@pytest.mark.parametrize(("status", "outcome"), [("PLACED", "commit"), ("PAID", "rollback")])
def test_a_deadline_is_armed_only_for_an_order_that_waits(status: str, outcome: str) -> None:
    timeline = [event(20, "half", "order-timeouts")]
    (step,) = steps(names.HALF_UNRESOLVED, timeline=timeline, status=status, half_end="commit")
    assert f" {outcome} --reason " in step["command"]


@pytest.mark.parametrize(
    ("topic", "status", "outcome"),
    [
        ("order-created", "PLACED", "commit"),
        ("order-created", "PAID", "commit"),
        ("order-created", None, "rollback"),
        ("order-paid", "PAID", "commit"),
        ("order-paid", "PLACED", "rollback"),
        ("order-cancelled", "CANCELLED", "commit"),
        ("order-cancelled", "PAID", "rollback"),
        ("order-timeouts", "PLACED", "commit"),
    ],
)
def test_a_half_is_ended_by_the_status_where_a_row_has_no_times(
    topic: str, status: str | None, outcome: str
) -> None:
    facts: Row = {"status": status, "placed_ms": None, "half_end": "commit"}
    (step,) = steps(names.HALF_UNRESOLVED, timeline=[event(60, "half", topic)], **facts)
    assert f" {outcome} --reason" in step["command"]


@pytest.mark.parametrize("status", ["TIMED_OUT", "CANCELLED"])
@pytest.mark.parametrize(("column", "kind"), [("", "look"), ("paid_ms", "command")])
def test_a_payment_of_an_order_that_has_ended_is_for_a_person_where_no_time_tells(
    status: str, column: str, kind: str
) -> None:
    sources = PlanSources(as_mapping({"orders": {"paid_ms": column}}, "a test"))
    facts: Row = {"status": status, "half_end": "commit", "timeline": [event(60, "half", "order-paid")]}
    (step,) = steps(names.HALF_UNRESOLVED, sources, **facts)
    assert step["kind"] == kind


def test_a_payment_that_is_still_undecided_is_not_sent_again() -> None:
    timeline = [event(60, "half", "order-paid")]
    facts = {"status": "PAID", "paid_ms": 5_000, "cancelled_ms": 6_000, "half_end": "commit"}
    found = steps(names.OUTCOME_CONTRADICTS_DATABASE, timeline=timeline, **facts)
    assert [step["message"]["topic"] for step in found] == ["order-cancelled"]


OWN_NAMES = as_mapping(
    {
        "topics": {"order_timeouts": "pay by"},
        "timers": {"order_timeouts": "unpaid/"},
        "bodies": {"order_id": "number", "customer_id": "buyer", "total_pence": "worth", "due_ms": "pay_by"},
    },
    "a test",
)


def timer_store(write_log: Any, **named: str) -> Path:
    """A store whose only record is a timer with these properties."""
    said = {"UNIQ_KEY": "0A", "REAL_TOPIC": "pay by", "TIMER_OUT_MS": "5000"}
    stored = properties.encode(said | named)
    store: Path = write_log([Record(topic=TIMER_TOPIC, queue_id=0, body=b"{}", properties=stored)])
    return store


@pytest.mark.parametrize(
    ("named", "option"),
    [({property_names.TIMER_KEY: "due o1"}, "--timer-key 'due o1'"), ({}, "--id 0A")],
)
def test_a_deadline_is_called_by_what_the_log_calls_it(write_log: Any, named: Row, option: str) -> None:
    sources = PlanSources(OWN_NAMES, store=timer_store(write_log, **named))
    (step,) = steps(names.TIMEOUT_NOT_FIRED, sources, status="PLACED", open_timer_offset=0)
    assert step["command"] == f"tidewheel timer fire --topic 'pay by' {option}"


def test_a_payment_that_is_told_again_cancels_the_users_timer_and_has_the_users_fields(
    write_log: Any,
) -> None:
    sources = PlanSources(OWN_NAMES, store=timer_store(write_log, **{property_names.TIMER_KEY: "due o1"}))
    paid = {"paid_ms": 5_000, "total_pence": 300, "open_timer_offset": 0}
    (step,) = steps(names.OUTCOME_CONTRADICTS_DATABASE, sources, **paid)
    assert step["message"]["properties"] == {"TW_TIMER_CANCEL": "due o1", "TW_TIMER_TOPIC": "pay by"}
    assert step["message"]["body"] == {"number": "o1", "buyer": "c1", "worth": 300, "paid_ms": 5_000}


def test_without_the_log_a_deadline_is_called_by_the_mapping() -> None:
    (step,) = steps(names.TIMEOUT_NOT_FIRED, PlanSources(OWN_NAMES), open_timer_offset=7)
    assert step["command"].endswith(" --timer-key unpaid/o1")


def test_a_payment_cancels_no_deadline_where_none_waits() -> None:
    (step,) = steps(names.OUTCOME_CONTRADICTS_DATABASE, PlanSources(OWN_NAMES), paid_ms=5_000)
    assert step["message"]["properties"] == {}


def test_a_deadline_that_was_never_set_is_sent() -> None:
    (step,) = steps(names.TIMEOUT_NOT_FIRED, PlanSources(OWN_NAMES), status="PLACED", due_ms=31_000)
    assert (step["message"]["topic"], step["message"]["body"]) == (
        "pay by",
        {"number": "o1", "pay_by": 31_000},
    )


def test_no_deadline_is_sent_where_there_is_no_topic_of_them() -> None:
    named = replace(OWN_NAMES, topics=replace(OWN_NAMES.topics, order_timeouts=""))
    (step,) = steps(names.TIMEOUT_NOT_FIRED, PlanSources(named), status="PLACED", due_ms=31_000)
    assert step["kind"] == "look"


def test_every_name_of_a_plan_is_the_users(tmp_path: Path) -> None:
    """None of the shop's own names is in any step once each has another one."""
    given: dict[str, dict[str, Any]] = {}
    for name in every_name():
        section, _, values = name.section.partition(".")
        theirs = "+01:00" if name.key == ZONE else f"own {name.section} {name.key}"
        if values:
            given.setdefault(section, {}).setdefault(values, {})[name.key] = theirs
        else:
            given.setdefault(section, {})[name.key] = theirs
    mapping = as_mapping(given, "a test")
    facts: Row = {"placed_ms": 1_000, "paid_ms": 5_000, "due_ms": 31_000, "open_timer_offset": 7}
    facts |= {"dead_letter_offset": 8, "deadline_dead_offset": 9}
    facts |= {"paid_offset": None, "unwritten": [{"sku": "apple", "quantity": 2}], "total_pence": 300}
    timeline = [event(60, "half", mapping.topics.order_created)]
    told = [
        step
        for case in names.FINDINGS
        for carts in ("redis://x", f"sqlite:///{tmp_path / 'carts.db'}")
        for changed in ({"committed_offset": None}, {}, {"open_timer_offset": None}, {"timeline": timeline})
        for step in steps(case, PlanSources(mapping, carts=carts), **(facts | changed))
        if step["kind"] != "look"
    ]
    assert len(told) > 10
    words = json.dumps(
        [
            [one.get("message"), one.get("statement"), one.get("command"), (one.get("redis") or [])[:2]]
            for one in told
        ]
    )
    for name in every_name():
        if name.default not in ("", "order", "add", "order:", "carts", "orders", "status", "lines", "pushes"):
            assert not re.search(rf"(?<![\w ]){re.escape(name.default)}(?![\w])", words), name.default


DUE_MS = 31_000
WAITING: Row = {"status": "PLACED", "due_ms": DUE_MS, "committed_offset": None}
BEFORE_MS, AFTER_MS = DUE_MS - 1, DUE_MS + 1


def steps_as_of(as_of_ms: int, case: str, **facts: Any) -> list[Row]:
    row = NOTHING | ORDER | {"case": case} | facts
    return [step.as_json(row) for row, step in plan.planned([row], PlanSources(), as_of_ms)]


@pytest.mark.parametrize("case", [names.ORDER_WITHOUT_MESSAGE, names.OUTCOME_CONTRADICTS_DATABASE])
def test_an_announced_order_that_waits_gets_its_deadline(case: str) -> None:
    """Without one it would be the next finding: never timed out. An overdue timer would fire late."""
    _, set_ = steps_as_of(BEFORE_MS, case, **WAITING)
    assert (set_["message"]["topic"], set_["message"]["delivery_ms"]) == ("order-timeouts", DUE_MS)
    assert set_["message"]["properties"] == {"TW_TIMER_KEY": "order:o1"}, "a payment can cancel it"
    _, sent = steps_as_of(AFTER_MS, case, **WAITING)
    assert sent["message"]["topic"] == "order-timeouts"
    assert "delivery_ms" not in sent["message"]
    for there in ({"open_timer_offset": 7}, {"delivered_offset": 7}, {"status": "PAID", "paid_offset": 9}):
        assert len(steps_as_of(AFTER_MS, case, **(WAITING | there))) == 1


@pytest.mark.parametrize(("status", "messages"), [("PAID", 1), ("CANCELLED", 1), ("TIMED_OUT", 0)])
def test_an_announced_order_is_told_whole(status: str, messages: int) -> None:
    """Also where a payment has no column of its own for its time."""
    announced, *told = steps(names.ORDER_WITHOUT_MESSAGE, status=status, committed_offset=None)
    assert announced["message"]["topic"] == "order-created"
    assert len(told) == messages
    assert all(None not in one["message"]["body"].values() for one in told)


def test_the_deadline_of_an_overdue_order_is_not_armed_but_sent() -> None:
    timeline = [event(20, "half", "order-timeouts")]
    ended, sent = steps_as_of(AFTER_MS, names.HALF_UNRESOLVED, timeline=timeline, **WAITING)
    assert " rollback --reason " in ended["command"]
    assert sent["message"]["topic"] == "order-timeouts"


def test_a_half_is_committed_with_a_deadline_where_none_was_begun() -> None:
    timeline = [event(20, "half", "order-created")]
    ended, sent = steps_as_of(BEFORE_MS, names.HALF_UNRESOLVED, timeline=timeline, **WAITING)
    assert " commit --reason " in ended["command"]
    assert sent["message"]["delivery_ms"] == DUE_MS


def test_a_cart_that_is_too_full_and_was_not_cleared_is_corrected_and_cleared(orders: str) -> None:
    facts = {"surplus": [{"sku": "apple", "cart": 2, "ledger": 0}], "is_consumed": True}
    found = steps(names.CART_NOT_CLEARED, PlanSources(orders=orders), **facts)
    assert [step["kind"] for step in found] == ["statement", "message"]
    cleared = steps(names.CART_NOT_CLEARED, PlanSources(orders=orders), cleared_ms=1_020, **facts)
    assert [step["kind"] for step in cleared] == ["statement"]


def test_a_row_is_changed_that_has_no_column_for_the_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    execute(
        url, "CREATE TABLE orders (order_id TEXT, status TEXT)", "INSERT INTO orders VALUES ('o1', 'open')"
    )
    lacking = dict.fromkeys(("paid_ms", "due_ms", "timed_out_ms", "cancelled_ms", "total_pence"), "")
    named = {"orders": lacking | {"statuses": {"PLACED": "open", "PAID": "settled"}}}
    mapping = as_mapping(named | {"order_lines": {"table": ""}}, "a test")
    facts = {"status": "PLACED", "paid_offset": 90, "paid_message_ms": 7_000}
    (step,) = steps(names.OUTCOME_CONTRADICTS_DATABASE, PlanSources(mapping, orders=url), **facts)
    execute(url, step["statement"])
    assert execute(url, "SELECT status FROM orders") == [("settled",)]
    assert "open" in step["safe_to_repeat"]


COMMANDS = {
    names.HALF_UNRESOLVED: {"timeline": [event(20, "half", "order-created")]},
    names.TIMEOUT_NOT_FIRED: {"open_timer_offset": 7},
    names.DEAD_LETTERED: {"dead_letter_offset": 7},
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_is_one_that_the_command_line_takes(case: str) -> None:
    (command,) = [one["command"] for one in steps(case, **COMMANDS[case]) if one["kind"] == "command"]
    name, group, verb, *arguments = shlex.split(command)
    assert name == "tidewheel"
    commands: Any = load(group)
    assert commands.commands[verb].make_context(verb, arguments).params
