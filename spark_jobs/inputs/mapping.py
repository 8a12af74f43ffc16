"""The mapping from the audit's names to a user's tables, topics and groups: one TOML file.

The audit has names for tables, columns, statuses, topics, groups and message bodies, which are the shop's. A
mapping sets the user's name for each of them. A name that it does not set keeps the shop's, so an empty file
is the shop's mapping. Databases and carts are translated on reading; everything after it uses our names.

    [orders]                              # a table: its name, and our column = the user's column
    table = "sales.purchase_order"        # the name may be qualified by a schema
    order_id = "number"                   # of any type: it becomes the text that messages have as their key
    total_pence = ""                      # no such column: it is null (optional columns: `OPTIONAL`)
    zone = "Europe/London"                # the zone of the table's times without a zone
    [orders.statuses]                     # our status = the user's, one or several
    PLACED = ["new", "confirmed"]         # "" is a row without a status; an unknown status stops the audit

    [order_lines] [pushes] [carts] [ledger]    the same; also [pushes.statuses], [ledger.entries]
    [order_lines]
    table = ""                            # no such table (`OPTIONAL_TABLES`)
    [topics]                              # our topic = the user's
    order_created = "purchase-orders"
    [groups]                              # the only group that acts on a topic
    order_created = "warehouse"
    [timers]                              # the prefix of the timer keys of deadlines
    order_timeouts = "unpaid/"
    [bodies]                              # the fields of the messages' JSON
    customer_id = "buyer"
    [amounts]                             # the currency of orders without a currency
    currency = "EUR"
    [redis]                               # the prefixes of the keys of carts and ledgers
    cart = "basket:"

Columns whose names end in `_ms` hold milliseconds since 1970, or the database's own timestamps, which are in
the mapped zone, else in UTC, if they have no zone. An unknown name is refused with a list of the known names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping as Names
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_jobs.inputs.zones import zone_of
from tidewheel.errors import ConfigurationError

TABLE: Final = "table"
ZONE: Final = "zone"
ZONE_DEFAULT: Final = "UTC"

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "orders": (
        "order_id", "customer_id", "status", "total_pence", "placed_ms", "due_ms", "paid_ms", "timed_out_ms",
        "cancelled_ms", "currency",
    ),
    "order_lines": ("order_id", "sku", "quantity"),
    "pushes": ("push_id", "schedule_id", "message_id", "status", "due_ms", "delivered_ms"),
    "carts": ("customer_id", "sku", "quantity"),
    "ledger": ("customer_id", "entry", "entry_id", "sku", "quantity", "at_ms"),
}  # fmt: skip
"""Our tables and their columns; the first column is the key."""

OPTIONAL: Final[dict[str, frozenset[str]]] = {
    "orders": frozenset({"total_pence", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms", "currency"}),
    "pushes": frozenset({"schedule_id", "message_id", "delivered_ms"}),
    "ledger": frozenset({"at_ms"}),
    "timers": frozenset({"order_timeouts"}),
    "topics": frozenset({"order_timeouts", "order_paid", "order_cancelled", "pushes"}),
    "bodies": frozenset({
        "customer_id", "placed_ms", "lines", "sku", "quantity", "due_ms", "paid_ms", "cancelled_ms",
        "total_pence",
    }),
    "amounts": frozenset({"currency"}),
}  # fmt: skip
"""Names that may be "": columns, which are then null; a prefix of keys; fields of bodies; topics, whose
messages no case then requires; the currency."""

ABSENT: Final[dict[str, frozenset[str]]] = {"orders": frozenset({"currency"})}
"""Columns that the shop itself does not have."""

OPTIONAL_TABLES: Final = frozenset({"order_lines"})
"""Tables that may be absent: `table = ""`."""

CONSTANTS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "orders": ("statuses", "status", ("PLACED", "PAID", "TIMED_OUT", "CANCELLED")),
    "pushes": ("statuses", "status", ("SCHEDULED", "DELIVERED", "CANCELLED", "FAILED")),
    "ledger": ("entries", "entry", ("add", "order")),
}
"""Tables with a column of known values -> the name of the section, the column, our values."""

NOT_OURS: Final = "\0"
"""Suffix of a user's value that equals one of ours for which only other values are mapped: it is unknown."""

NAMES_DEFAULT: Final = {"ledger": "cart_ledger"}


@dataclass(frozen=True, slots=True)
class TableMapping:
    """One of our tables in a user's database."""

    ours: str
    name: str
    columns: Names[str, str]
    """Our column -> the user's, in our order, without absent columns."""
    constants: Names[str, Names[str, str]] = field(default_factory=dict)
    """Our column -> the user's value -> ours; other values are unchanged."""
    fixed: Names[str, str] = field(default_factory=dict)
    """Our column -> the value that replaces null."""
    zone: str = ""
    """The zone of times without a zone; "" if none is mapped."""

    @property
    def is_there(self) -> bool:
        """Return whether the user has such a table."""
        return self.name != ""

    @property
    def key(self) -> str:
        """Return our name of the key column."""
        return COLUMNS[self.ours][0]


@dataclass(frozen=True, slots=True)
class Topics:
    """The user's names for our topics."""

    order_created: str = "order-created"
    order_timeouts: str = "order-timeouts"
    order_paid: str = "order-paid"
    order_cancelled: str = "order-cancelled"
    pushes: str = "pushes"

    @property
    def of_orders(self) -> tuple[str, ...]:
        """Return the topics whose messages are about an order."""
        return self.order_created, self.order_timeouts, self.order_paid, self.order_cancelled

    @property
    def all(self) -> tuple[str, ...]:
        """Return every topic that the audit reads."""
        return *self.of_orders, self.pushes


@dataclass(frozen=True, slots=True)
class Groups:
    """The only group that acts on each topic; the audit has none for payments and cancellations."""

    order_created: str = "shop-carts"
    order_timeouts: str = "shop-orders"
    pushes: str = "shop-pushes"


@dataclass(frozen=True, slots=True)
class Timers:
    """The prefix of the timer keys of deadlines, before the order's id."""

    order_timeouts: str = "order:"


@dataclass(frozen=True, slots=True)
class Bodies:
    """The fields of the messages' JSON bodies; `sku` and `quantity` are in each object of `lines`."""

    order_id: str = "order_id"
    customer_id: str = "customer_id"
    placed_ms: str = "placed_ms"
    lines: str = "lines"
    sku: str = "sku"
    quantity: str = "quantity"
    due_ms: str = "due_ms"
    paid_ms: str = "paid_ms"
    cancelled_ms: str = "cancelled_ms"
    total_pence: str = "total_pence"
    push_id: str = "push_id"


@dataclass(frozen=True, slots=True)
class Amounts:
    """The currency (ISO 4217) of orders without a currency."""

    currency: str = ""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The prefixes of the keys of carts and of their ledgers, before the customer's id."""

    cart: str = "cart:"
    ledger: str = "cart-ledger:"


def _as_in_the_shop(ours: str) -> TableMapping:
    """Return the mapping of a table to the shop's names."""
    columns = {name: name for name in COLUMNS[ours] if name not in ABSENT.get(ours, ())}
    return TableMapping(ours, NAMES_DEFAULT.get(ours, ours), columns)


@dataclass(frozen=True, slots=True)
class Mapping:
    """All names that a user can set."""

    orders: TableMapping = field(default_factory=lambda: _as_in_the_shop("orders"))
    order_lines: TableMapping = field(default_factory=lambda: _as_in_the_shop("order_lines"))
    pushes: TableMapping = field(default_factory=lambda: _as_in_the_shop("pushes"))
    carts: TableMapping = field(default_factory=lambda: _as_in_the_shop("carts"))
    ledger: TableMapping = field(default_factory=lambda: _as_in_the_shop("ledger"))
    topics: Topics = Topics()
    groups: Groups = Groups()
    timers: Timers = Timers()
    bodies: Bodies = Bodies()
    amounts: Amounts = Amounts()
    redis: RedisKeys = RedisKeys()

    @property
    def has_currency(self) -> bool:
        """Return whether the currency of amounts is known."""
        return "currency" in self.orders.columns or bool(self.amounts.currency)

    @property
    def consumers(self) -> dict[str, str]:
        """Return topic -> the group that acts on it, by the user's names, without absent topics."""
        named = {
            getattr(self.topics, one.name): getattr(self.groups, one.name) for one in fields(self.groups)
        }
        return {topic: group for topic, group in named.items() if topic}


SHOP: Final = Mapping()
"""The shop's own names."""

Section = TypeVar("Section", Topics, Groups, Timers, Bodies, Amounts, RedisKeys)


def has_times(ours: str) -> bool:
    """Return whether one of our tables has columns of times, and so may have a zone."""
    return any(name.endswith("_ms") for name in COLUMNS[ours])


def read_mapping(path: Path) -> Mapping:
    """Return the mapping of a TOML file.

    Raises:
        ConfigurationError: when the file is unreadable, is not TOML, or has an unknown name or invalid value.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}). Correct --mapping.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML file ({error}). Correct --mapping.") from error
    return as_mapping(given, str(path))


def as_mapping(given: dict[str, Any], shown: str) -> Mapping:
    """Return the mapping that a TOML document describes; `shown` names the document in messages.

    Raises:
        ConfigurationError: when it has an unknown name or an invalid value.
    """
    sections = [one.name for one in fields(Mapping)]
    _refuse_unknown(given, sections, shown)
    changed: dict[str, Any] = {}
    for name, section in given.items():
        where = f"{shown} [{name}]"
        if not isinstance(section, dict):
            raise ConfigurationError(f"{shown}: {name} is no section. Write [{name}] and its names below.")
        known = getattr(SHOP, name)
        is_table = isinstance(known, TableMapping)
        changed[name] = (
            _table(known, section, where)
            if is_table
            else _section(known, section, where, OPTIONAL.get(name, frozenset()))
        )
    mapping = _with_currency(replace(SHOP, **changed))
    _refuse_same_topics(mapping.topics, shown)
    return mapping


def _with_currency(mapping: Mapping) -> Mapping:
    currency = mapping.amounts.currency
    fixed = {"currency": currency} if currency else {}
    return replace(mapping, orders=replace(mapping.orders, fixed=fixed))


def _section(known: Section, given: dict[str, Any], where: str, may_lack: frozenset[str]) -> Section:
    _refuse_unknown(given, [one.name for one in fields(known)], where)
    for name, value in given.items():
        if value != "" or name not in may_lack:
            _require_text(value, name, where)
    return replace(known, **given)


def _table(known: TableMapping, given: dict[str, Any], where: str) -> TableMapping:
    section, column, ours = CONSTANTS.get(known.ours, ("", "", ()))
    columns = COLUMNS[known.ours]
    names = [TABLE, *columns, *filter(None, [section]), *([ZONE] if has_times(known.ours) else [])]
    _refuse_unknown(given, names, where)
    named = {name: given.get(name, known.columns.get(name, "")) for name in columns}
    for name, theirs in named.items():
        if theirs != "" or name not in OPTIONAL.get(known.ours, ()):
            _require_text(theirs, name, where)
    table = given.get(TABLE, known.name)
    if table != "" or known.ours not in OPTIONAL_TABLES:
        _require_text(table, TABLE, where)
    values = _constants(given.get(section, {}), ours, f"{where[:-1]}.{section}]") if section else {}
    there = {name: theirs for name, theirs in named.items() if theirs}
    zone = _zone(given[ZONE], where) if ZONE in given else ""
    return TableMapping(known.ours, table, there, {column: values} if values else {}, zone=zone)


def _zone(given: Any, where: str) -> str:
    _require_text(given, ZONE, where)
    try:
        zone_of(given)
    except ValueError as error:
        raise ConfigurationError(
            f'{where}: {ZONE} = {given!r} is no zone. Give one as "Europe/London", "+01:00" or "UTC".'
        ) from error
    return str(given)


def _constants(given: Any, ours: tuple[str, ...], where: str) -> dict[str, str]:
    """Return the user's value -> ours; raise `ConfigurationError`."""
    if not isinstance(given, dict):
        raise ConfigurationError(f"{where} is no section. Write our value = theirs below it.")
    _refuse_unknown(given, list(ours), where)
    found: dict[str, str] = {}
    for name, theirs in given.items():
        for value in theirs if isinstance(theirs, list) else [theirs]:
            if not isinstance(value, str | int):
                raise ConfigurationError(f"{where}: {name} = {value!r} is neither a text nor a number.")
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if text in found:
                raise ConfigurationError(f"{where}: {value!r} is both {found[text]} and {name}.")
            found[text] = name
    return found


def as_read(values: Names[str, str]) -> dict[str, str]:
    """Return the user's value -> ours, and our values for which only others are mapped -> with `NOT_OURS`."""
    return {ours: ours + NOT_OURS for ours in values.values()} | dict(values)


def _refuse_unknown(given: dict[str, Any], known: list[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{where} has the unknown name '{name}'. There are {', '.join(known)}.")


def _require_text(value: Any, name: str, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where}: {name} = {value!r} is no name. Give a text in quotes.")


def _refuse_same_topics(topics: Topics, shown: str) -> None:
    """Raise `ConfigurationError` if two topics have one name, since their messages are indistinguishable."""
    named = [name for name in topics.all if name]
    if len(set(named)) < len(named):
        raise ConfigurationError(
            f"{shown} [topics] gives two of our topics the same name. Each needs its own; "
            f"they are {', '.join(topics.all)}."
        )
