"""Choice of the orders' columns other than times (`times`), by names, foreign keys and message bodies.

customer_id     a foreign key to such a table, or such a name; a field of the message adds weight
total_pence     a number column with such a name; a field of the message adds weight. A column with fractions
                is not chosen, and leads to a doubt
currency        a text column with such a name, three letters in each value
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from spark_jobs.inputs import mapping as names
from spark_jobs.proposing.agreement import field_equals, field_names, pairs
from spark_jobs.proposing.facts import Column, Kind
from spark_jobs.proposing.known import Evidence, KnownOrders
from spark_jobs.proposing.proposal import Choice, Doubt, Part, not_found
from spark_jobs.proposing.words import COLUMNS, likeness

_CURRENCIES_SHOWN_MAX: Final = 6
_NUMBERS: Final = (Kind.INTEGER, Kind.DECIMAL)
_IDS: Final = (Kind.INTEGER, Kind.TEXT, Kind.OTHER)


def choose_columns(orders: KnownOrders) -> Part:
    """Return the choices for the columns of the orders other than key, status and times."""
    taken = {orders.found.key, orders.status}
    customer = _customer(orders, taken)
    taken |= {one.value for one in customer.choices if isinstance(one.value, str)}
    has_currency = "currency" in names.COLUMNS["orders"]
    currency = _currency(orders) if has_currency else _currencies(orders)
    return Part.joined((customer, _total(orders, taken), currency))


def _customer(orders: KnownOrders, taken: Iterable[str]) -> Part:
    said = {
        column.name: evidence
        for column in orders.found.table.columns
        if column.name not in taken and (evidence := _as_customer(orders, column)).weight
    }
    if said:
        best = max(said, key=lambda name: said[name].weight)
        return Part((Choice("orders", "customer_id", best, said[best].why),))
    return Part(
        (Choice("orders", "customer_id", orders.found.key, "nothing better was found; only carts need it"),),
        (not_found("whose order it is", "orders", "customer_id", _told_in_messages(orders, taken, _IDS)),),
    )


def _as_customer(orders: KnownOrders, column: Column) -> Evidence:
    if column.kind in (Kind.TIME, Kind.BOOLEAN, Kind.DECIMAL):
        return Evidence(0, "")
    reasons, weight = [], 0
    named = likeness(column.name, COLUMNS["customer_id"])
    refers = likeness(column.refers_to, COLUMNS["customer_id"]) if column.refers_to else 0
    if named:
        weight += 2
        reasons.append("its name")
    if refers:
        weight += 3
        reasons.append(f"it refers to {column.refers_to}")
    field = _equal_field(orders, column.name) if weight else ""
    return Evidence(weight + 2 * bool(field), "; ".join([*reasons, *filter(None, [field])]))


def _equal_field(orders: KnownOrders, column: str) -> str:
    """Return the reason that a column equals a field of the first message's body; "" if it equals none."""
    topic = orders.topics.topic("order_created")
    for field in field_names(topic.messages) if topic else ():
        assert topic is not None
        alike = field_equals(pairs(topic, orders.rows), field, column)
        if alike.is_most:
            return f"it is the field {field} of {alike} messages"
    return ""


def _told_in_messages(orders: KnownOrders, taken: Iterable[str], kinds: Sequence[Kind]) -> list[str]:
    """Return the columns of some kinds that equal a field of the first message's body and are no times."""
    return [
        column.name
        for column in orders.found.table.columns
        if column.kind in kinds
        and column.name not in taken
        and not any(column.name in row.times for row in orders.found.table.rows)
        and _equal_field(orders, column.name)
    ]


def _total(orders: KnownOrders, taken: Iterable[str]) -> Part:
    said: dict[str, Evidence] = {}
    for column in orders.found.table.columns:
        is_number = column.kind in _NUMBERS
        if column.name in taken or column.refers_to or column.is_unique or not is_number:
            continue
        named = likeness(column.name, COLUMNS["total_pence"])
        if named and not any(column.name in row.times for row in orders.found.table.rows):
            field = _equal_field(orders, column.name)
            why = "; ".join(["whole numbers; its name", *filter(None, [field])])
            said[column.name] = Evidence(named + 2 * bool(field), why)
    best = max(said, key=lambda name: said[name].weight, default="")
    if not best:
        return Part(
            (Choice("orders", "total_pence", "", "none was found"),),
            (
                not_found(
                    "what an order is worth",
                    "orders",
                    "total_pence",
                    _told_in_messages(orders, taken, _NUMBERS),
                ),
            ),
        )
    if fraction := next((one for one in orders.found.table.values(best) if not _is_whole(one)), ""):
        return Part(
            (Choice("orders", "total_pence", "", f"{best} has parts of a whole"),),
            (
                Doubt(
                    f"Column {best} has values such as {fraction}; the audit counts in the smallest coin. "
                    f"For amounts in the report, name a view with CAST(ROUND({best} * 100) AS BIGINT) as the "
                    "table (AS SIGNED in MySQL and MariaDB), and that column as total_pence in [orders]."
                ),
            ),
        )
    return Part((Choice("orders", "total_pence", best, said[best].why),))


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except (ValueError, OverflowError):
        return False


def _currency_column(orders: KnownOrders) -> str:
    return next(
        (
            column.name
            for column in orders.found.table.columns
            if column.kind is Kind.TEXT
            and likeness(column.name, COLUMNS["currency"])
            and column.counts
            and all(value is None or (value.isalpha() and len(value) == 3) for value in column.counts)
        ),
        "",
    )


def _currency(orders: KnownOrders) -> Part:
    name = _currency_column(orders)
    why = "three letters each; its name" if name else "none was found"
    return Part((Choice("orders", "currency", name, why),))


def _currencies(orders: KnownOrders) -> Part:
    """Return the doubt that the report adds up amounts of several currencies as one."""
    name = _currency_column(orders)
    counts = orders.found.table.column(name).counts if name else None
    there = [value for value in counts or {} if value]
    if len(there) < 2:
        return Part()
    listed = ", ".join(sorted(there)[:_CURRENCIES_SHOWN_MAX])
    return Part(
        doubts=(
            Doubt(
                f"Column {name} has several currencies ({listed}): the report adds up what findings are "
                'worth as if they were one. For sums of each, audit views, or write total_pence = "".'
            ),
        )
    )
