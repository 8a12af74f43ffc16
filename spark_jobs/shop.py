"""The shop's names and forms, as the audit knows them: a contract between two sides that share no code."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

ORDER_CREATED: Final = "order-created"
ORDER_TIMEOUTS: Final = "order-timeouts"
ORDER_PAID: Final = "order-paid"
ORDER_CANCELLED: Final = "order-cancelled"
PUSHES: Final = "pushes"
ORDER_TOPICS: Final = (ORDER_CREATED, ORDER_TIMEOUTS, ORDER_PAID, ORDER_CANCELLED)
TOPICS: Final = (*ORDER_TOPICS, PUSHES)

CONSUMERS: Final = {ORDER_CREATED: "shop-carts", ORDER_TIMEOUTS: "shop-orders", PUSHES: "shop-pushes"}
"""The one group that acts on each topic; payments and cancellations are for others to act on."""

PLACED: Final = "PLACED"
TIMED_OUT: Final = "TIMED_OUT"

BODY: Final = (
    "order_id string, customer_id string, placed_ms bigint, "
    "lines array<struct<sku: string, quantity: bigint>>, due_ms bigint, push_id string, "
    "paid_ms bigint, cancelled_ms bigint"
)
"""The fields of any of the topics' bodies."""


def readable(topic: Column, key: Column, message: Column) -> Column:
    """Whether a parsed body has what its topic promises, under the id that the message's key names."""
    created = (message.order_id == key) & message.customer_id.isNotNull() & message.lines.isNotNull()
    timeout = (message.order_id == key) & message.due_ms.isNotNull()
    paid = (message.order_id == key) & message.paid_ms.isNotNull()
    cancelled = (message.order_id == key) & message.cancelled_ms.isNotNull()
    promised = (
        F.when(topic == ORDER_CREATED, created)
        .when(topic == ORDER_TIMEOUTS, timeout)
        .when(topic == ORDER_PAID, paid)
        .when(topic == ORDER_CANCELLED, cancelled)
    )
    return F.coalesce(promised.otherwise(message.push_id == key), F.lit(False))
