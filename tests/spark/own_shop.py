"""A user's own tables in place of the shop's: the rows that the shop wrote, under other names."""

from __future__ import annotations

from typing import Any

from sqlalchemy import create_engine, text

from spark_jobs.inputs.mapping import Mapping, as_mapping

STATUSES = {"PLACED": "open", "PAID": "settled", "TIMED_OUT": "lapsed", "CANCELLED": "void"}
NAMES: dict[str, Any] = {
    "orders": {
        "table": "purchase",
        "order_id": "number",
        "customer_id": "buyer",
        "status": "state",
        "total_pence": "worth",
        "placed_ms": "made_at",
        "due_ms": "pay_by",
        "paid_ms": "settled_at",
        "timed_out_ms": "lapsed_at",
        "cancelled_ms": "void_at",
        "currency": "coin",
        "statuses": STATUSES,
    },
    "order_lines": {"table": "item", "order_id": "purchase", "sku": "article", "quantity": "pieces"},
}


def own_tables(shop: Any) -> tuple[str, Mapping]:
    """Copy the shop's rows into own tables beside its database; return their URL and mapping."""
    path = shop.folder / "own.db"
    path.unlink(missing_ok=True)
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(text(f"ATTACH '{shop.folder / 'orders.db'}' AS shop"))
        for ours, table in (("orders", NAMES["orders"]), ("order_lines", NAMES["order_lines"])):
            pairs = [(name, theirs) for name, theirs in table.items() if name not in ("table", "statuses")]
            columns = ", ".join(f"{_value(name)} AS {theirs}" for name, theirs in pairs)
            connection.execute(text(f"CREATE TABLE {table['table']} AS SELECT {columns} FROM shop.{ours}"))
    engine.dispose()
    return f"sqlite:///{path}", as_mapping(NAMES, "own names")


def _value(name: str) -> str:
    if name == "currency":  # which the shop does not have
        return "CASE WHEN length(order_id) % 2 THEN 'EUR' ELSE 'JPY' END"
    if name != "status":
        return name
    cases = " ".join(f"WHEN '{ours}' THEN '{theirs}'" for ours, theirs in STATUSES.items())
    return f"CASE status {cases} ELSE status END"
