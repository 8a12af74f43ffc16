"""Every name that a mapping can give, and what it means: a table for the documents, a file to begin with."""

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

_ZONE: Final = "of its times that have none: Europe/London, +01:00"

MEANINGS: Final[dict[str, dict[str, str]]] = {
    "orders": {
        "table": "one row per order",
        "zone": _ZONE,
        "order_id": "its id, of any type: as text the first key of its messages",
        "customer_id": "whose cart the order empties",
        "status": "where it stands",
        "total_pence": "what it is worth, in the smallest coin: the report adds up what findings are worth",
        "placed_ms": "when it was placed",
        "due_ms": "until when it had to be paid",
        "paid_ms": "when it was paid",
        "timed_out_ms": "when it was given up as not paid",
        "cancelled_ms": "when the customer cancelled it",
        "currency": "the currency of its total, by ISO 4217: `EUR`; which also says how many decimals it has",
    },
    "orders.statuses": {
        "PLACED": "neither paid nor given up yet",
        "PAID": "paid",
        "TIMED_OUT": "given up as not paid in time",
        "CANCELLED": "cancelled by the customer",
    },
    "order_lines": {
        "table": "what was ordered, one row per order and article; read only with carts",
        "order_id": "the order",
        "sku": "the article",
        "quantity": "how many of it",
    },
    "pushes": {
        "table": "one row per push; read only with --pushes",
        "zone": _ZONE,
        "push_id": "its id: the first key of its message; of a schedule's run `<schedule_id>@<time in ms>`",
        "schedule_id": "the schedule that it is a run of",
        "message_id": "the id of its message",
        "status": "where it stands",
        "due_ms": "when it is to be sent",
        "delivered_ms": "when it was sent",
    },
    "pushes.statuses": {
        "SCHEDULED": "still to come",
        "DELIVERED": "sent",
        "CANCELLED": "called off",
        "FAILED": "given up",
    },
    "carts": {
        "table": "what carts hold, one row per customer and article; read where --carts is a database",
        "customer_id": "whose cart",
        "sku": "the article",
        "quantity": "how many of it",
    },
    "ledger": {
        "table": "every change of a cart; read where --carts is a database",
        "zone": _ZONE,
        "customer_id": "whose cart",
        "entry": "what kind of change",
        "entry_id": "its id; of an order's change the order's id",
        "sku": "the article; none for an order that found nothing to remove",
        "quantity": "how many of it",
        "at_ms": "when",
    },
    "ledger.entries": {
        "add": "articles were put into the cart",
        "order": "an order took its articles out",
    },
    "topics": {
        "order_created": "an order was placed; a message of a transaction",
        "order_timeouts": "its deadline; a delayed message that a payment cancels",
        "order_paid": "it was paid; a message of a transaction",
        "order_cancelled": "it was cancelled; a message of a transaction",
        "pushes": "pushes, delayed or of a schedule",
    },
    "groups": {
        "order_created": "the one group that acts on that topic: the carts",
        "order_timeouts": "likewise: whoever times orders out",
        "pushes": "likewise: whoever sends pushes",
    },
    "timers": {
        "order_timeouts": "what the timer keys of deadlines begin with, the order's id follows; for repair "
        "plans that set a deadline again, or have no --store with its key",
    },
    "bodies": {
        "order_id": "a field of the JSON of each order's messages, first of all",
        "customer_id": "of order_created",
        "placed_ms": "of order_created, if it is there",
        "lines": "of order_created: a list of objects",
        "sku": "of each of the lines",
        "quantity": "of each of the lines",
        "due_ms": "of order_timeouts",
        "paid_ms": "of order_paid",
        "cancelled_ms": "of order_cancelled",
        "total_pence": "of order_paid and order_cancelled: only for repair plans",
        "push_id": "of pushes; a schedule's messages name the schedule",
    },
    "amounts": {
        "currency": "the currency of the totals of orders that have none of their own; without any, totals "
        "are shown in hundredths",
    },
    "redis": {
        "cart": "what the keys of carts begin with, where --carts is Redis; the customer's id follows",
        "ledger": "likewise of ledgers",
    },
}


class Name(NamedTuple):
    """One name: where it stands, what the shop calls it, whether it may be "", and what it means."""

    section: str
    key: str
    default: str
    may_lack: bool
    meaning: str


def every_name() -> Iterator[Name]:
    """Yield each name that a mapping can give, section by section."""
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
    """Return a mapping in which every name is a comment, with what the shop calls it."""
    lines = ["# What you call what the audit reads. What is not named here is called as in the shop."]
    section = ""
    for one in every_name():
        if one.section != section:
            section = one.section
            lines += ["", f"[{section}]"]
        lacks = '; "" if there is none' if one.may_lack else ""
        lines.append(f'#{one.key} = "{one.default}"  # {one.meaning}{lacks}')
    return "\n".join(lines) + "\n"
