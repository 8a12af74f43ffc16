"""Sabotage spoils what it says and nothing else (that the audit finds it is an acceptance test)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, insert, text

from services.shop.carts.carts import Addition, Carts
from services.shop.database import open_database, sqlite_url
from services.shop.demo.sabotage import CASES, require_known, spoil
from services.shop.tables import order_lines, order_metadata, orders
from tidewheel.errors import NotFound, UnknownChoice

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

ORDER_IDS = ("O1", "O2", "O3", "O4", "O5")


@pytest.fixture
def engine(tmp_path: Path, redis: Redis) -> Engine:
    """Five paid orders that have left their carts."""
    made = open_database(sqlite_url(tmp_path / "orders.db"), order_metadata)
    carts = Carts(redis, clock_ms=lambda: 0)
    for order_id in ORDER_IDS:
        customer_id = f"C{order_id}"
        head: dict[str, Any] = {"order_id": order_id, "customer_id": customer_id, "status": "PAID"}
        head |= {"total_pence": 2, "placed_ms": 0, "due_ms": 9, "paid_ms": 1}
        with made.begin() as connection:
            connection.execute(insert(orders).values(head))
            line = {"order_id": order_id, "sku": "A", "quantity": 2, "unit_price_pence": 1}
            connection.execute(insert(order_lines).values(line))
        carts.add(customer_id, [Addition(f"{order_id}/A", "A", 2)])
        carts.clear(customer_id, order_id, [("A", 2)])
    return made


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_each_case_spoils_another_order(engine: Engine, redis: Redis) -> None:
    spoiled = spoil(engine, redis, tuple(CASES), seed=1)
    assert spoiled.keys() == CASES.keys()
    assert len({order_id.removesuffix("-forged") for order_id in spoiled.values()}) == len(CASES)


def test_an_uncleared_cart_holds_the_order_again(engine: Engine, redis: Redis) -> None:
    (order_id,) = spoil(engine, redis, ("cart-not-cleared",), seed=1).values()
    assert redis.hgetall(f"cart:C{order_id}") == {"A": "2"}
    assert redis.hkeys(f"cart-ledger:C{order_id}") == [f"add:{order_id}/A"]


def test_a_forged_order_has_the_rows_of_a_real_one(engine: Engine, redis: Redis) -> None:
    (order_id,) = spoil(engine, redis, ("order-without-message",), seed=1).values()
    assert rows(engine, f"SELECT status, paid_ms FROM orders WHERE order_id = '{order_id}'") == [("PAID", 1)]
    assert rows(engine, f"SELECT sku FROM order_lines WHERE order_id = '{order_id}'") == [("A",)]


def test_a_lost_order_leaves_no_rows(engine: Engine, redis: Redis) -> None:
    (order_id,) = spoil(engine, redis, ("message-without-order",), seed=1).values()
    left = rows(engine, "SELECT order_id FROM orders ORDER BY order_id")
    assert left == [(other,) for other in ORDER_IDS if other != order_id]


def test_a_paid_order_has_timed_out(engine: Engine, redis: Redis) -> None:
    (order_id,) = spoil(engine, redis, ("paid-but-timed-out",), seed=1).values()
    timed_out = rows(engine, "SELECT order_id, status, paid_ms FROM orders WHERE timed_out_ms IS NOT NULL")
    assert timed_out == [(order_id, "TIMED_OUT", 1)]


def test_too_few_orders_are_told(engine: Engine, redis: Redis) -> None:
    with pytest.raises(NotFound, match="no paid order left"):
        spoil(engine, redis, tuple(CASES) * 2, seed=1)


def test_an_unknown_case_names_the_known_ones() -> None:
    with pytest.raises(UnknownChoice, match="cart-not-cleared, order-without-message"):
        require_known(("cart-not-cleared", "fire"))
