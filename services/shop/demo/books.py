"""Totals from the shop's databases at the end of a run, before the audit.

Lateness is the time at which a row was changed minus the time at which it was due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from services.shop.tables import OrderStatus, PushStatus, orders, pushes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine


@dataclass(slots=True, frozen=True)
class Lateness:
    """Lateness in milliseconds. Negative values are counted as early."""

    count: int
    early_count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(slots=True, frozen=True)
class OrderBooks:
    """The number of orders by status."""

    paid: int
    timed_out: int
    cancelled: int
    in_flight: int


def order_books(engine: Engine) -> OrderBooks:
    """Count the orders by status."""
    counts = counts_by(engine, orders.c.status)
    return OrderBooks(
        paid=counts.get(OrderStatus.PAID, 0),
        timed_out=counts.get(OrderStatus.TIMED_OUT, 0),
        cancelled=counts.get(OrderStatus.CANCELLED, 0),
        in_flight=counts.get(OrderStatus.PLACED, 0),
    )


def push_books(engine: Engine) -> dict[str, int]:
    """Count the pushes by status."""
    counts = counts_by(engine, pushes.c.status)
    return {status.lower(): counts.get(status, 0) for status in PushStatus}


def counts_by(engine: Engine, column: Any) -> dict[str, int]:
    """Count the rows of a table by the value of a column."""
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(select(column, func.count()).group_by(column))}


def timeout_lateness(engine: Engine) -> Lateness:
    """Return the lateness of order timeouts."""
    late_ms = select(orders.c.timed_out_ms - orders.c.due_ms).where(orders.c.timed_out_ms.is_not(None))
    return lateness_of(values(engine, late_ms))


def push_lateness(engine: Engine) -> Lateness:
    """Return the lateness of push deliveries."""
    late_ms = select(pushes.c.delivered_ms - pushes.c.due_ms).where(pushes.c.delivered_ms.is_not(None))
    return lateness_of(values(engine, late_ms))


def values(engine: Engine, query: Any) -> list[int]:
    """Return the values of a query with one column."""
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


def lateness_of(late_ms: Sequence[int]) -> Lateness:
    """Summarize lateness. Without values, all results are zero."""
    ordered = sorted(late_ms) or [0]
    return Lateness(
        count=len(late_ms),
        early_count=sum(late < 0 for late in late_ms),
        p50_ms=ordered[len(ordered) // 2],
        p99_ms=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        max_ms=ordered[-1],
    )
