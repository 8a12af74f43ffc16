"""Messages of plans are such as the service's own consumers take: fields, types, tags and properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text

from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import TYPE_COMMIT, Record
from spark_jobs.cases import names
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import Mapping, as_mapping
from spark_jobs.layout import FINDING_COLUMNS
from spark_jobs.plan import plan
from spark_jobs.plan.sources import PlanSources
from tidewheel import property_names

Row = dict[str, Any]
NOTHING: Row = dict.fromkeys(FINDING_COLUMNS)
PLACED_MS, DUE_MS, PAID_MS = 1_764_277_200_000, 1_764_277_500_000, 1_764_277_260_000
ORDER: Row = NOTHING | {
    "subject": "order", "subject_id": "17", "order_id": "17", "why": "Because.", "customer_id": "7",
    "status": "PLACED", "total_pence": 1250, "currency": "EUR", "placed_ms": PLACED_MS, "due_ms": DUE_MS,
    "timeline": [],
}  # fmt: skip
OWN = as_mapping(
    {
        "topics": {"order_created": "booked", "order_timeouts": "holds", "order_paid": "settled"},
        "bodies": {
            "order_id": "code", "customer_id": "guest", "placed_ms": "at", "lines": "items", "sku": "seat",
            "quantity": "n", "due_ms": "until", "paid_ms": "at", "cancelled_ms": "at", "total_pence": "worth",
        },
    },
    "a test",
)  # fmt: skip
BOOKED: Row = {
    "code": 17, "guest": 7, "at": "2025-11-27T21:00:00.000Z", "worth": 12.5, "note": "by the window",
    "items": [{"seat": 22423, "n": 1, "price": 12.5}],
}  # fmt: skip


def record(body: Any, topic: str = "booked", **given: Any) -> Record:
    told = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = Message(topic=topic, body=told, **({"message_id": "M", "keys": ("17",)} | given))
    return Record(topic, told, properties.encode_message(message), sys_flag=TYPE_COMMIT)


def held(one: Record, topic: str, by: str) -> Record:
    """A half, or timer, of a message."""
    return Record(by, one.body, one.properties + properties.encode({property_names.REAL_TOPIC: topic}))


def steps(case: str, sources: PlanSources, orders: Path | None = None, **facts: Any) -> list[Row]:
    row = ORDER | {"case": case} | facts
    return [step.as_json(row) for _, step in plan.planned([row], sources, PLACED_MS, orders)]


def event(kind: str, one: Record, topic: str) -> Row:
    return {"physical_offset": one.physical_offset, "store_ms": 1, "kind": kind, "topic": topic, "note": ""}


def test_an_order_is_announced_again_as_its_service_has_announced_it(write_log: Any) -> None:
    own: Row = {"tag": "web", "properties": {"shop": "north", "TW_OUTBOX_ID": "9"}, "keys": ("17", "gift 1")}
    first, again = record(BOOKED | {"note": "old"}), record(BOOKED, **own)
    sources = PlanSources(OWN, store=write_log([first, again]))
    timeline = [event("committed", one, "booked") for one in (first, again)]
    (step,) = steps(names.CART_NOT_CLEARED, sources, committed_offset=0, timeline=timeline)
    sent = step["message"]
    assert sent["body"] == BOOKED
    assert (sent["tag"], sent["keys"], sent["properties"]) == ("web", ["17", "gift 1"], {"shop": "north"})
    assert "filled in" not in step["what"]


@pytest.mark.parametrize("kind", ["half", "committed"])
def test_only_what_the_row_says_otherwise_is_changed(write_log: Any, tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    lines_in(url, ("22423", 2), ("22424", 1))
    said = record(BOOKED | {"guest": 8})
    stored = held(said, "booked", HALF_TOPIC) if kind == "half" else said
    sources = PlanSources(OWN, orders=url, store=write_log([record({}, "other"), stored]))
    found: Row = {
        "timeline": [event(kind, stored, "booked")],
        "rollback_offset": 900,
        "delivered_offset": 950,
    }
    (step,) = steps(names.OUTCOME_CONTRADICTS_DATABASE, sources, **found)
    items = [{"seat": 22423, "n": 2, "price": 12.5}, {"seat": 22424, "n": 1, "price": None}]
    assert step["message"]["body"] == BOOKED | {"items": items}
    assert "To be filled in, as the service does it: items.price." in step["what"]


def lines_in(url: str, *lines: tuple[str, int]) -> None:
    engine = create_engine(url)
    with engine.begin() as database:
        database.execute(text("CREATE TABLE orders (order_id INTEGER, customer_id INTEGER)"))
        database.execute(text("CREATE TABLE order_lines (order_id INTEGER, sku INTEGER, quantity INTEGER)"))
        for sku, quantity in lines:
            database.execute(text(f"INSERT INTO order_lines VALUES (17, {sku}, {quantity})"))
    engine.dispose()


def test_a_deadline_that_was_cancelled_is_set_as_it_was_with_the_orders_time(write_log: Any) -> None:
    body = {"code": 17, "until": "2025-12-09T00:00:00+01:00", "seat": "3A"}
    waiting = {"TW_TIMER_KEY": "hold/17", "TIMER_OUT_MS": "1"}
    timer = held(record(body, "holds", properties=waiting), "holds", TIMER_TOPIC)
    sources = PlanSources(OWN, store=write_log([record({}, "other"), timer]))
    found: Row = {"timer_offset": timer.physical_offset, "timeline": [event("timer", timer, "holds")]}
    (step,) = steps(names.TIMEOUT_NOT_FIRED, sources, **found)
    assert step["message"]["body"] == body | {"until": "2025-11-27T22:05:00+01:00"}
    assert step["message"]["properties"] == {"TW_TIMER_KEY": "hold/17"}
    assert step["message"]["delivery_ms"] == DUE_MS


def others(write_log: Any, folder: Path, count: int, **more: Any) -> tuple[Path, Path]:
    """A store with payments of orders that balance, and the run's orders."""
    records, rows = [record({}, "other")], list[Row]()
    for number in range(count):
        at_ms = PAID_MS + 1_000 * number
        body = {"code": number, "guest": 100 + number, "at": at_ms // 1_000, "worth": f"{number + 1}.50"}
        body |= {"money": "EUR" if number % 2 else "JPY", "version": 2, "by": f"{number}@x"} | more
        records.append(record(body, "settled", tag="paid", keys=(str(number),)))
        rows.append({
            "order_id": str(number), "case": "balanced", "customer_id": str(100 + number), "due_ms": None,
            "total_pence": 100 * number + 150, "currency": "EUR" if number % 2 else "JPY",
            "placed_ms": PLACED_MS, "paid_ms": at_ms, "timed_out_ms": None, "cancelled_ms": None,
        })  # fmt: skip
    store = write_log(records)
    orders = folder / "orders"
    orders.mkdir()
    for number, row in enumerate(rows):
        row["paid_offset"] = records[1 + number].physical_offset
    schema = pa.schema(
        [(name, pa.string() if isinstance(rows[0][name], str) else pa.int64()) for name in rows[0]]
    )
    pq.write_table(pa.Table.from_pylist(rows[: count // 2], schema), orders / "0.parquet")
    pq.write_table(pa.Table.from_pylist(rows[count // 2 :], schema), orders / "1.parquet")
    return store, orders


@pytest.mark.parametrize("count", [2, 40])
def test_a_message_that_was_never_sent_is_as_those_of_other_orders(
    write_log: Any, tmp_path: Path, count: int
) -> None:
    store, orders = others(write_log, tmp_path, count)
    paid: Row = {"status": "PAID", "paid_ms": PAID_MS, "committed_offset": 7}
    (step,) = steps(names.OUTCOME_CONTRADICTS_DATABASE, PlanSources(OWN, store=store), orders, **paid)
    expected = {"code": 17, "guest": 7, "at": PAID_MS // 1_000, "worth": "12.50", "money": "EUR"}
    version = 2 if count > 10 else None
    assert step["message"]["body"] == expected | {"version": version, "by": None}
    assert step["message"]["tag"] == "paid"
    lacking = "by" if count > 10 else "version, by"
    assert step["what"].endswith(f"To be filled in, as the service does it: {lacking}.")


def test_without_the_log_values_have_the_types_of_the_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    lines_in(url, ("22423", 2))
    announced, _ = steps(names.ORDER_WITHOUT_MESSAGE, PlanSources(orders=url))
    lines = [{"sku": 22423, "quantity": 2}]
    assert announced["message"]["body"] == {
        "order_id": 17, "customer_id": 7, "placed_ms": PLACED_MS, "lines": lines,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "told"), [(b"17;7;3A", "message", "17;7;3A"), (b"\xff\x00", "look", None)]
)
def test_a_body_that_is_no_json_is_sent_as_it_was_or_by_a_person(
    write_log: Any, body: bytes, kind: str, told: str | None
) -> None:
    sources = PlanSources(OWN, store=write_log([record({}, "other"), one := record(body)]))
    found: Row = {"timeline": [event("committed", one, "booked")]}
    (step,) = steps(names.CART_NOT_CLEARED, sources, **found)
    assert step["kind"] == kind
    assert step.get("message", {}).get("body") == told


def test_a_mapping_without_fields_leaves_the_services_own_alone(write_log: Any) -> None:
    bare: Mapping = as_mapping({"topics": {"order_created": "booked"}}, "a test")
    sources = PlanSources(bare, store=write_log([record({}, "other"), one := record(BOOKED)]))
    (step,) = steps(names.CART_NOT_CLEARED, sources, timeline=[event("committed", one, "booked")])
    assert step["message"]["body"] == BOOKED


def test_a_database_that_cannot_be_reached_is_named_in_one_sentence(tmp_path: Path) -> None:
    sources = PlanSources(OWN, pushes=f"sqlite:///{tmp_path / 'no folder' / 'pushes.db'}")
    with pytest.raises(DatabaseUnreadable, match=r"Table \S+ cannot be read .* Repair it, and plan again"):
        sources.has_row(OWN.pushes, {"push_id": "p-1"})
