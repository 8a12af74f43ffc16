"""The tables of the order and push databases. Times are in milliseconds since 1970, and amounts are in pence.

A PLACED order becomes PAID, TIMED_OUT or CANCELLED. A PAID order can become CANCELLED. A SCHEDULED push
becomes DELIVERED or CANCELLED. Every change is a conditional update of the status, so the first of two
concurrent changes succeeds. The table `tidewheel_barrier` in the order database belongs to
`tidewheel.barrier`.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, MetaData, String, Table, Text


class OrderStatus(StrEnum):
    """The status of an order."""

    PLACED = "PLACED"
    PAID = "PAID"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


class PushStatus(StrEnum):
    """The status of a push."""

    SCHEDULED = "SCHEDULED"
    DELIVERED = "DELIVERED"
    CANCELLED = "CANCELLED"


order_metadata = MetaData()
orders = Table(
    "orders",
    order_metadata,
    Column("order_id", String(64), primary_key=True),
    Column("customer_id", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("total_pence", BigInteger, nullable=False),
    Column("placed_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("paid_ms", BigInteger),
    Column("timed_out_ms", BigInteger),
    Column("cancelled_ms", BigInteger),
    Index("orders_by_status", "status"),
)
order_lines = Table(
    "order_lines",
    order_metadata,
    Column("order_id", ForeignKey("orders.order_id"), primary_key=True),
    Column("sku", String(64), primary_key=True),
    Column("quantity", BigInteger, nullable=False),
    Column("unit_price_pence", BigInteger, nullable=False),
)

push_metadata = MetaData()
pushes = Table(
    "pushes",
    push_metadata,
    Column("push_id", String(128), primary_key=True),
    Column("schedule_id", String(64), index=True),
    Column("customer_id", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("delivered_ms", BigInteger),
    Column("message_id", String(128)),
    Column("recall_handle", Text),
)
push_schedules = Table(
    "push_schedules",
    push_metadata,
    Column("schedule_id", String(64), primary_key=True),
    Column("cron", String(128), nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("customer_id", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("active", Boolean, nullable=False),
)
