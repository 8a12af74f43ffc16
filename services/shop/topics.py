"""The shop's topics, what each takes, and who consumes it.

Whatever is said of an order is said in a transaction with its row, so its topics take nothing else; that a
deadline has a delivery time beside makes it no other kind of message. Payments and cancellations are topics
of their own, not tags of one: who ships what was paid and who gives money back cannot get the other's
messages by forgetting a filter, and `tidewheel txn show O1 --topic order-paid` asks for one thing.
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
