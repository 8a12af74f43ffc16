"""The names that a mapping can set, with their meanings: a table for the documents, and an example file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final, NamedTuple

from spark_jobs.inputs.mapping import (
    COLUMNS,
    CONSTANTS,
    OPTIONAL,
    OPTIONAL_TABLES,
    SHOP,
    TABLE,
    ZONE,
    ZONE_DEFAULT,
    Mapping,
    TableMapping,
    has_times,
)

_ZONE: Final = "the zone of times without a zone: Europe/London, +01:00"
_DATABASE_CARTS: Final = "read if --carts is a database"

MEANINGS: Final[dict[str, dict[str, str]]] = {
    "orders": {
        "table": "one row per order",
        "zone": _ZONE,
        "order_id": "the id of the order, of any type; as text, it is the first key of the order's messages",
        "customer_id": "the customer whose cart the order empties",
        "status": "the status of the order",
        "total_pence": "the total of the order in the smallest unit; the report sums the totals of findings",
        "placed_ms": "the time at which the order was placed",
        "due_ms": "the time by which the order had to be paid",
        "paid_ms": "the time at which the order was paid",
        "timed_out_ms": "the time at which the unpaid order timed out",
        "cancelled_ms": "the time at which the customer cancelled the order",
        "currency": "the currency of the total (ISO 4217: `EUR`), which also sets its number of decimals",
    },
    "orders.statuses": {
        "PLACED": "the order is neither paid nor timed out yet",
        "PAID": "the order is paid",
        "TIMED_OUT": "the order was not paid in time",
        "CANCELLED": "the customer cancelled the order",
    },
    "order_lines": {
        "table": "the ordered articles, one row per order and article; read only with carts",
        "order_id": "the id of the order",
        "sku": "the article",
        "quantity": "the quantity of the article",
    },
    "pushes": {
        "table": "one row per push; read only with --pushes",
        "zone": _ZONE,
        "push_id": "the first key of the push's message; for a schedule's run `<schedule_id>@<time in ms>`",
        "schedule_id": "the schedule of which the push is a run",
        "message_id": "the id of the push's message",
        "status": "the status of the push",
        "due_ms": "the time at which the push is due",
        "delivered_ms": "the time at which the push was sent",
    },
    "pushes.statuses": {
        "SCHEDULED": "the push is not due yet",
        "DELIVERED": "the push was sent",
        "CANCELLED": "the push was cancelled",
        "FAILED": "the push could not be sent",
    },
    "carts": {
        "table": f"the contents of carts, one row per customer and article; {_DATABASE_CARTS}",
        "customer_id": "the customer who owns the cart",
        "sku": "the article",
        "quantity": "the quantity of the article",
    },
    "ledger": {
        "table": f"one row per change of a cart; {_DATABASE_CARTS}",
        "zone": _ZONE,
        "customer_id": "the customer who owns the cart",
        "entry": "the kind of change",
        "entry_id": "the id of the change; for a change by an order, the id of the order",
        "sku": "the article; empty for an order that had nothing to remove",
        "quantity": "the quantity of the article",
        "at_ms": "the time of the change",
    },
    "ledger.entries": {
        "add": "articles were added to the cart",
        "order": "an order removed its articles from the cart",
    },
    "topics": {
        "order_created": "messages for placed orders; messages of a transaction",
        "order_timeouts": "deadlines of orders; delayed messages that a payment cancels",
        "order_paid": "messages for paid orders; messages of a transaction",
        "order_cancelled": "messages for cancelled orders; messages of a transaction",
        "pushes": "messages for pushes, delayed or sent by a schedule",
    },
    "groups": {
        "order_created": "the only group that acts on this topic: the carts",
        "order_timeouts": "the only group that acts on this topic: it times orders out",
        "pushes": "the only group that acts on this topic: it sends pushes",
    },
    "timers": {
        "order_timeouts": "the prefix of the timer keys of deadlines, before the order id; for repair plans "
        "that set a deadline again, or that have no --store with its key",
    },
    "bodies": {
        "order_id": "a field of the JSON of each order's messages, preferably the first field",
        "customer_id": "a field of messages of order_created",
        "placed_ms": "an optional field of messages of order_created",
        "lines": "a field of messages of order_created: a list of objects",
        "sku": "a field of each object in lines",
        "quantity": "a field of each object in lines",
        "due_ms": "a field of messages of order_timeouts",
        "paid_ms": "a field of messages of order_paid",
        "cancelled_ms": "a field of messages of order_cancelled",
        "total_pence": "a field of messages of order_paid and order_cancelled; only for repair plans",
        "push_id": "a field of messages of pushes; messages of a schedule name the schedule instead",
    },
    "amounts": {
        "currency": "the currency of orders without a currency of their own; without any currency, totals "
        "are shown in hundredths",
    },
    "redis": {
        "cart": "the prefix of the keys of carts, before the customer id, if --carts is Redis",
        "ledger": "the prefix of the keys of ledgers, before the customer id, if --carts is Redis",
    },
}


class Name(NamedTuple):
    """A name: its section and key, the shop's default, whether it may be "", and its meaning."""

    section: str
    key: str
    default: str
    may_lack: bool
    meaning: str


def every_name() -> Iterator[Name]:
    """Yield each name that a mapping can set, section by section."""
    for section in (one.name for one in fields(Mapping)):
        known = getattr(SHOP, section)
        if isinstance(known, TableMapping):
            yield from _of_table(known)
        else:
            for one in fields(known):
                may_lack = one.name in OPTIONAL.get(section, ())
                yield _named(section, one.name, getattr(known, one.name), may_lack)


def _of_table(known: TableMapping) -> Iterator[Name]:
    yield _named(known.ours, TABLE, known.name, known.ours in OPTIONAL_TABLES)
    if has_times(known.ours):
        yield _named(known.ours, ZONE, ZONE_DEFAULT)
    for ours in COLUMNS[known.ours]:
        theirs = known.columns.get(ours, "")
        yield _named(known.ours, ours, theirs, ours in OPTIONAL.get(known.ours, ()))
    values, _, constants = CONSTANTS.get(known.ours, ("", "", ()))
    for value in constants:
        yield _named(f"{known.ours}.{values}", value, value)


def _named(section: str, key: str, default: str, may_lack: bool = False) -> Name:
    return Name(section, key, default, may_lack, MEANINGS[section][key])


def table() -> str:
    """Return all names as a Markdown table."""
    lines = ["| section | name | the shop's | | meaning |", "|---|---|---|---|---|"]
    for one in every_name():
        lacks = 'may be `""`' if one.may_lack else ""
        default = f"`{one.default}`" if one.default else "none"
        lines.append(f"| `[{one.section}]` | `{one.key}` | {default} | {lacks} | {one.meaning} |")
    return "\n".join(lines) + "\n"


def example() -> str:
    """Return a mapping in which every name is a comment, with the default of the shop."""
    lines = ["# The names that the audit reads. A name that is not set here has the default of the shop."]
    section = ""
    for one in every_name():
        if one.section != section:
            section = one.section
            lines += ["", f"[{section}]"]
        lacks = '; "" if there is none' if one.may_lack else ""
        lines.append(f'#{one.key} = "{one.default}"  # {one.meaning}{lacks}')
    return "\n".join(lines) + "\n"
