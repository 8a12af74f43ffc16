"""The shop's topics, what each takes, and who consumes it."""

from __future__ import annotations

ORDER_CREATED = "order-created"
ORDER_TIMEOUTS = "order-timeouts"
PUSHES = "pushes"

TOPIC_TYPES = {ORDER_CREATED: "TRANSACTION", ORDER_TIMEOUTS: "DELAY", PUSHES: "MIXED"}

CARTS_GROUP = "shop-carts"
ORDERS_GROUP = "shop-orders"
PUSHES_GROUP = "shop-pushes"
