"""Choice of the tables with articles: order lines, carts, and the ledger of cart changes.

All three have columns for the article and the quantity. Order lines also have the order's key. Carts have the
customer, with one row per customer and article. A ledger has the customer, the kind of change, and the
order's key for changes by an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from spark_jobs.proposing.agreement import Share, share
from spark_jobs.proposing.facts import Column, Kind, Table
from spark_jobs.proposing.orders import FoundOrders
from spark_jobs.proposing.proposal import Choice, Doubt, Part
from spark_jobs.proposing.words import COLUMNS, TABLES, likeness

_ENTRIES_MAX: Final = 12
_ADD: Final = "add added plus in put hinzu rein ajout mas anadir aggiunto toegevoegd dodano"
_ORDER_WORDS: Final = (
    "order ordered minus out sold checkout bestellt raus commande pedido ordine besteld zamowione"
)


class Articles(NamedTuple):
    """A table with articles, its columns by mapping name, and the reason for the choice."""

    table: Table
    columns: Mapping[str, str]
    why: str


class _Entries(NamedTuple):
    column: str
    added: tuple[str, ...]
    ordered: str
    why: str


def find_lines(tables: Sequence[Table], orders: FoundOrders) -> Articles | None:
    """Return the table of order lines; None if there is none."""
    found: list[tuple[int, Articles]] = []
    for table in tables:
        if table.name == orders.table.name:
            continue
        for column in table.columns:
            is_theirs = column.refers_to == _bare(orders.table.name)
            if not is_theirs and not _holds_orders(column, orders):
                continue
            article, quantity = _article(table, {column.name}), _quantity(table, {column.name})
            if not article or not quantity or _entry_column(table, column.name):
                continue
            why = f"its {column.name} refers to {orders.table.name}" if is_theirs else _held(column, orders)
            named = likeness(table.name, TABLES["order_lines"]) > 0
            columns = {"order_id": column.name, "sku": article, "quantity": quantity}
            weight = 2 * is_theirs + 2 * named - 3 * (likeness(table.name, TABLES["ledger"]) > 0)
            found.append((weight, Articles(table, columns, why)))
    return max(found, key=lambda one: one[0])[1] if found else None


def lines_part(lines: Articles | None) -> Part:
    """Return the choices for the order lines."""
    if lines is None:
        return Part((Choice("order_lines", "table", "", "no table has orders, articles and quantities"),))
    return Part(tuple(_choices("order_lines", lines)))


def choose_carts(tables: Sequence[Table], orders: FoundOrders, customer: str, taken: Sequence[str]) -> Part:
    """Return the choices for carts and their ledger; a doubt and no choices if only one of them was found."""
    left = [one for one in tables if one.name not in (orders.table.name, *taken)]
    ledger = _find_ledger(left, orders, customer)
    unused = [one for one in left if ledger is None or one.name != ledger[0].table.name]
    carts = _find_carts(unused, customer, orders)
    if ledger is None or carts is None:
        if ledger is None and carts is None:
            return Part()
        there, lacks = ("carts", "their ledger") if carts else ("a ledger of carts", "the carts")
        table = carts.table.name if carts else ledger[0].table.name if ledger else ""
        return Part(
            doubts=(
                Doubt(
                    f"Table {table} may be {there}, but {lacks} was not found: no order is judged by a cart. "
                    "With carts in Redis, give them by --carts redis://...; else write [carts] and [ledger]."
                ),
            )
        )
    found, entries = ledger
    values = list(entries.added) if len(entries.added) != 1 else entries.added[0]
    return Part(
        (
            *_choices("carts", carts),
            *_choices("ledger", found),
            Choice("ledger.entries", "add", values, "the entries without an order"),
            Choice("ledger.entries", "order", entries.ordered, entries.why),
        )
    )


def _choices(section: str, found: Articles) -> list[Choice]:
    return [
        Choice(section, "table", found.table.name, found.why),
        *(Choice(section, ours, theirs, "") for ours, theirs in found.columns.items()),
    ]


def _find_carts(tables: Sequence[Table], customer: str, orders: FoundOrders) -> Articles | None:
    for table in tables:
        theirs = _customer(table, customer, orders)
        if not theirs or not (article := _article(table, {theirs})):
            continue
        quantity = _quantity(table, {theirs, article})
        pairs = [(row.texts.get(theirs), row.texts.get(article)) for row in table.rows]
        is_named = likeness(table.name, TABLES["carts"]) > 0 and not likeness(table.name, TABLES["ledger"])
        if quantity and is_named and len(pairs) == len(set(pairs)):
            why = "its name; one row of each customer and article"
            return Articles(table, {"customer_id": theirs, "sku": article, "quantity": quantity}, why)
    return None


def _find_ledger(
    tables: Sequence[Table], orders: FoundOrders, customer: str
) -> tuple[Articles, _Entries] | None:
    for table in tables:
        for column in table.columns:
            if not _holds_orders(column, orders):
                continue
            entries = _entries(table, column.name, orders)
            theirs = _customer(table, customer, orders)
            if entries is None or not theirs:
                continue
            article = _article(table, {column.name, theirs, entries.column})
            quantity = _quantity(table, {column.name, theirs, article})
            if article and quantity:
                when = next(
                    (one.name for one in table.columns if one.kind is Kind.TIME), ""
                ) or _numbers_time(table)
                columns = {
                    "customer_id": theirs, "entry": entries.column, "entry_id": column.name,
                    "sku": article, "quantity": quantity, "at_ms": when,
                }  # fmt: skip
                return Articles(table, columns, _held(column, orders)), entries
    return None


def _numbers_time(table: Table) -> str:
    for column in table.columns:
        if table.rows and all(column.name in row.times for row in table.rows):
            return column.name
    return ""


def _entries(table: Table, key: str, orders: FoundOrders) -> _Entries | None:
    """Return the column with the kind of change, and its values for additions and for orders.

    Return None without such a column, without exactly one value for orders, or without one for additions.
    """
    column = _entry_column(table, key)
    if not column:
        return None
    keys = frozenset().union(*(one.keys for one in orders.topics))
    by_value: dict[str, list[bool]] = {}
    for row in table.rows:
        value = row.texts.get(column)
        if value is not None:
            by_value.setdefault(value, []).append(row.texts.get(key) in keys)
    shares: dict[str, Share] = {value: share(flags) for value, flags in by_value.items()}
    values = [value for value in table.column(column).counts or {} if value is not None]
    ordered = [value for value, of in shares.items() if of.is_most]
    if len(ordered) != 1:
        ordered = [value for value in values if likeness(value, _ORDER_WORDS)]
    added = [value for value in values if value not in ordered and likeness(value, _ADD)]
    if not added:
        added = [value for value in values if value not in ordered]
    if len(ordered) != 1 or not added:
        return None
    of = shares.get(ordered[0], Share(0, 0))
    return _Entries(column, tuple(added), ordered[0], f"{key} is an order's key in {of} such rows")


def _entry_column(table: Table, key: str) -> str:
    """Return the column with the kinds of changes; "" if there is none.

    It is a text column with at most `_ENTRIES_MAX` values, identified by its name or a value for additions.
    """
    for column in table.columns:
        values = [value for value in column.counts or {} if value]
        if column.name == key or column.kind is not Kind.TEXT or not 0 < len(values) <= _ENTRIES_MAX:
            continue
        words = any(likeness(value, _ADD) for value in values) and len(values) > 1
        if (likeness(column.name, COLUMNS["entry"]) and not likeness(column.name, COLUMNS["sku"])) or words:
            return column.name
    return ""


def _customer(table: Table, customer: str, orders: FoundOrders) -> str:
    refers_to = orders.table.column(customer).refers_to if customer else ""
    for column in table.columns:
        if (refers_to and column.refers_to == refers_to) or column.name == customer:
            return column.name
    named = [one.name for one in table.columns if likeness(one.name, COLUMNS["customer_id"])]
    return named[0] if named else ""


def _article(table: Table, taken: set[str]) -> str:
    named = {one.name: likeness(one.name, COLUMNS["sku"]) for one in table.columns if one.name not in taken}
    best = max(named, key=lambda name: named[name], default="")
    return best if best and named[best] else ""


def _quantity(table: Table, taken: set[str]) -> str:
    named = {
        one.name: likeness(one.name, COLUMNS["quantity"])
        for one in table.columns
        if one.name not in taken and one.kind in (Kind.INTEGER, Kind.DECIMAL) and not one.refers_to
    }
    best = max(named, key=lambda name: named[name], default="")
    return best if best and named[best] else ""


def _holds_orders(column: Column, orders: FoundOrders) -> bool:
    keys = frozenset().union(*(one.keys for one in orders.topics))
    return not column.is_unique and len(column.keys & keys) * 2 >= len(keys)


def _held(column: Column, orders: FoundOrders) -> str:
    keys = frozenset().union(*(one.keys for one in orders.topics))
    return f"its {column.name} holds {Share(len(column.keys & keys), len(keys))} keys of orders' messages"


def _bare(name: str) -> str:
    return name.rpartition(".")[2]
