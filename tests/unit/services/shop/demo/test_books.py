"""The shop's own books: counts by status, and how late things came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, insert

from services.shop.database import open_database, sqlite_url
from services.shop.demo.books import Lateness, OrderBooks, lateness_of, order_books, timeout_lateness
from services.shop.tables import OrderStatus, order_metadata, orders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_database(sqlite_url(tmp_path / "orders.db"), order_metadata)


def insert_order(engine: Engine, order_id: str, status: OrderStatus, late_ms: int | None = None) -> None:
    row = {"order_id": order_id, "customer_id": "C1", "status": status, "total_pence": 1, "placed_ms": 0}
    timed_out_ms = None if late_ms is None else 1_000 + late_ms
    with engine.begin() as connection:
        connection.execute(insert(orders).values(row | {"due_ms": 1_000, "timed_out_ms": timed_out_ms}))


def test_every_order_is_counted_where_it_stands(engine: Engine) -> None:
    for number, status in enumerate([*OrderStatus, OrderStatus.PAID]):
        insert_order(engine, f"O{number}", status)
    assert order_books(engine) == OrderBooks(paid=2, timed_out=1, cancelled=1, in_flight=1)


def test_lateness_is_measured_from_the_deadline(engine: Engine) -> None:
    for number, late_ms in enumerate([5, 20, -1]):
        insert_order(engine, f"O{number}", OrderStatus.TIMED_OUT, late_ms)
    assert timeout_lateness(engine) == Lateness(count=3, early_count=1, p50_ms=5, p99_ms=20, max_ms=20)


def test_nothing_is_not_late() -> None:
    assert lateness_of([]) == Lateness(0, 0, 0, 0, 0)
