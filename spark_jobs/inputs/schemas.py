"""The schemas of the exported tables, separate from the database readers, since every task imports them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ORDERS: Final = pa.schema([
    ("order_id", pa.string()),
    ("customer_id", pa.string()),
    ("status", pa.string()),
    ("total_pence", pa.int64()),
    ("placed_ms", pa.int64()),
    ("due_ms", pa.int64()),
    ("paid_ms", pa.int64()),
    ("timed_out_ms", pa.int64()),
    ("cancelled_ms", pa.int64()),
    ("currency", pa.string()),
])  # fmt: skip
ORDER_LINES: Final = pa.schema([("order_id", pa.string()), ("sku", pa.string()), ("quantity", pa.int64())])
PUSHES: Final = pa.schema([
    ("push_id", pa.string()),
    ("schedule_id", pa.string()),
    ("message_id", pa.string()),
    ("status", pa.string()),
    ("due_ms", pa.int64()),
    ("delivered_ms", pa.int64()),
])  # fmt: skip
CARTS: Final = pa.schema([("customer_id", pa.string()), ("sku", pa.string()), ("quantity", pa.int64())])
LEDGER: Final = pa.schema([
    ("customer_id", pa.string()),
    ("entry", pa.string()),
    ("entry_id", pa.string()),
    ("sku", pa.string()),
    ("quantity", pa.int64()),
    ("at_ms", pa.int64()),
])  # fmt: skip
SCHEMAS: Final = {
    "orders": ORDERS, "order_lines": ORDER_LINES, "pushes": PUSHES, "carts": CARTS, "ledger": LEDGER,
}  # fmt: skip
"""The schemas of our tables, by their names in `mapping`."""

ADD: Final = "add"
ORDER: Final = "order"
"""The kinds of ledger entries."""
