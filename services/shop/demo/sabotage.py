"""Damages the stores of a finished run on purpose, one order for each case.

The audit receives the usual paths and URLs and no information about the damage. The changes are SQL
statements and Redis commands, so they can be repeated manually.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from tidewheel.errors import NotFound, UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis
    from sqlalchemy import Engine


@dataclass(slots=True, frozen=True)
class Victim:
    """A paid order whose lines were removed from the cart."""

    order_id: str
    customer_id: str
    removed: dict[str, int]


def cart_not_cleared(engine: Engine, redis: Redis, victim: Victim) -> str:
    """Put the ordered lines back into the cart and delete their ledger entry. Returns the order id."""
    redis.hdel(f"cart-ledger:{victim.customer_id}", f"order:{victim.order_id}")
    for sku, quantity in victim.removed.items():
        redis.hincrby(f"cart:{victim.customer_id}", sku, quantity)
    return victim.order_id


def order_without_message(engine: Engine, redis: Redis, victim: Victim) -> str:
    """Copy the rows of an order under a new id, for which there is no message. Returns the new id."""
    forged = f"{victim.order_id}-forged"
    run_sql(
        engine,
        "INSERT INTO orders SELECT :forged, customer_id, status, total_pence, placed_ms, due_ms, paid_ms,"
        " timed_out_ms, cancelled_ms FROM orders WHERE order_id = :order_id",
        "INSERT INTO order_lines SELECT :forged, sku, quantity, unit_price_pence FROM order_lines"
        " WHERE order_id = :order_id",
        order_id=victim.order_id,
        forged=forged,
    )
    return forged


def message_without_order(engine: Engine, redis: Redis, victim: Victim) -> str:
    """Delete the rows of an order that has a message. Returns the order id."""
    run_sql(
        engine,
        "DELETE FROM order_lines WHERE order_id = :order_id",
        "DELETE FROM orders WHERE order_id = :order_id",
        order_id=victim.order_id,
    )
    return victim.order_id


def paid_but_timed_out(engine: Engine, redis: Redis, victim: Victim) -> str:
    """Mark a paid order as timed out. Returns the order id."""
    run_sql(
        engine,
        "UPDATE orders SET status = 'TIMED_OUT', timed_out_ms = due_ms WHERE order_id = :order_id",
        order_id=victim.order_id,
    )
    return victim.order_id


CASES: dict[str, Callable[[Engine, Redis, Victim], str]] = {
    "cart-not-cleared": cart_not_cleared,
    "order-without-message": order_without_message,
    "message-without-order": message_without_order,
    "paid-but-timed-out": paid_but_timed_out,
}


def require_known(cases: tuple[str, ...]) -> None:
    """Raise an error for an unknown case.

    Raises:
        UnknownChoice: If a case is unknown. The message lists the cases.
    """
    for case in cases:
        if case not in CASES:
            raise UnknownChoice(f"--sabotage {case}: choose from {', '.join(CASES)}.")


def spoil(engine: Engine, redis: Redis, cases: tuple[str, ...], seed: int) -> dict[str, str]:
    """Damage a different order for each case. Returns case -> order id.

    Raises:
        NotFound: If the run has too few paid orders.
    """
    draw = random.Random(seed)
    candidates = paid_orders(engine)
    draw.shuffle(candidates)
    victims = filter(None, (victim_of(redis, *candidate) for candidate in candidates))
    spoiled = {}
    for case in cases:
        victim = next(victims, None)
        if victim is None:
            raise NotFound(f"There is no paid order left to spoil for {case}. Replay more with --count.")
        spoiled[case] = CASES[case](engine, redis, victim)
    return spoiled


def paid_orders(engine: Engine) -> list[tuple[str, str]]:
    """Return the (order id, customer id) of all paid orders, sorted by order id."""
    query = "SELECT order_id, customer_id FROM orders WHERE status = 'PAID' ORDER BY order_id"
    with engine.connect() as connection:
        return [(row.order_id, row.customer_id) for row in connection.execute(text(query))]


def victim_of(redis: Redis, order_id: str, customer_id: str) -> Victim | None:
    """Return an order with the lines that it removed from the cart, or None if it removed none."""
    entry: Any = redis.hget(f"cart-ledger:{customer_id}", f"order:{order_id}")
    removed = json.loads(entry)["removed"] if entry else {}
    return Victim(order_id, customer_id, removed) if removed else None


def run_sql(engine: Engine, *statements: str, **parameters: str) -> None:
    """Run statements in a transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters)
