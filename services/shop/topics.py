"""The topics of the shop, their message types and their consumer groups.

Every message about an order is sent in a transaction with its row, so the order topics accept only
transactions. A deadline is also a transactional message, although it has a delivery time. Payments and
cancellations have separate topics instead of tags, so that a consumer without a filter does not receive the
wrong messages. `tidewheel txn show O1 --topic order-paid` therefore finds only payments.
"""

from __future__ import annotations

ORDER_CREATED = "order-created"
ORDER_TIMEOUTS = "order-timeouts"
ORDER_PAID = "order-paid"
ORDER_CANCELLED = "order-cancelled"
PUSHES = "pushes"

ORDER_TOPICS = (ORDER_CREATED, ORDER_TIMEOUTS, ORDER_PAID, ORDER_CANCELLED)
TOPIC_TYPES = dict.fromkeys(ORDER_TOPICS, "TRANSACTION") | {PUSHES: "MIXED"}

CARTS_GROUP = "shop-carts"
ORDERS_GROUP = "shop-orders"
PUSHES_GROUP = "shop-pushes"
