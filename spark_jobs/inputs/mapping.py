"""A user's own tables, topics and groups in place of the shop's: one TOML file that says what is called how.

The audit knows tables, columns, statuses, topics, groups and message bodies by its own names, which are the
shop's. A mapping gives each of them its name in the user's world; what it does not mention keeps the shop's
name, so an empty file is the shop's mapping. Databases and carts are translated while they are read: behind
the reading there are only our names.

    [orders]                              # a table: its name, and our column = their column
    table = "sales.purchase_order"        # a database's schema may stand before the name
    order_id = "number"                   # of any type: it becomes the text that messages have as their key
    total_pence = ""                      # no such column: it is null (`OPTIONAL` has those that may lack)
    zone = "Europe/London"                # of the table's times that have none
    [orders.statuses]                     # our status = theirs, one or several
    PLACED = ["new", "confirmed"]         # "" is a row without one; a status that is none stops the audit

    [order_lines] [pushes] [carts] [ledger]    likewise; [pushes.statuses], [ledger.entries]
    [order_lines]
    table = ""                            # there are none (`OPTIONAL_TABLES`)
    [topics]                              # our topic = theirs
    order_created = "purchase-orders"
    [groups]                              # the one group that acts on a topic
    order_created = "warehouse"
    [timers]                              # what the timer keys of deadlines begin with
    order_timeouts = "unpaid/"
    [bodies]                              # the fields of the messages' JSON
    customer_id = "buyer"
    [amounts]                             # the currency of orders that have no column for it
    currency = "EUR"
    [redis]                               # what the keys of carts and ledgers begin with
    cart = "basket:"

Columns whose names end in `_ms` hold milliseconds since 1970, or the database's own timestamps (in the zone
that is mapped, else UTC, where they have none). An unknown name is refused, and the ones that there are are
told.
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
"""Names that a user need not have: columns, which are null then, a prefix of keys, fields of bodies, topics,
whose messages no case then asks for."""

ABSENT: Final[dict[str, frozenset[str]]] = {"orders": frozenset({"currency"})}
"""Columns that the shop itself does not have."""

OPTIONAL_TABLES: Final = frozenset({"order_lines"})
"""Tables that a user need not have: `table = ""`."""

CONSTANTS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "orders": ("statuses", "status", ("PLACED", "PAID", "TIMED_OUT", "CANCELLED")),
    "pushes": ("statuses", "status", ("SCHEDULED", "DELIVERED", "CANCELLED", "FAILED")),
    "ledger": ("entries", "entry", ("add", "order")),
}
"""Tables with a column of known values: the name of their section, the column, our values."""

NOT_OURS: Final = "\0"
"""Ends a word of ours in a user's table for which the mapping has another one: there it means nothing."""

NAMES_DEFAULT: Final = {"ledger": "cart_ledger"}


@dataclass(frozen=True, slots=True)
class TableMapping:
    """One table of ours in a user's database."""

    ours: str
    name: str
    columns: Names[str, str]
    """Our column -> theirs, in our order; one that they do not have is left out."""
    constants: Names[str, Names[str, str]] = field(default_factory=dict)
    """Our column -> their value -> ours; a value that is not named stays as it is."""
    fixed: Names[str, str] = field(default_factory=dict)
    """Our column -> its value in every row that has none."""
    zone: str = ""
    """The zone of times that have none; "" where none was mapped."""

    @property
    def is_there(self) -> bool:
        """Return whether the user has such a table at all."""
        return self.name != ""

    @property
    def key(self) -> str:
        """Return our name of the column that names a row's subject."""
        return COLUMNS[self.ours][0]


@dataclass(frozen=True, slots=True)
class Topics:
    """What the user calls our topics."""

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
    """The one group that acts on each topic; payments and cancellations are for others to act on."""

    order_created: str = "shop-carts"
    order_timeouts: str = "shop-orders"
    pushes: str = "shop-pushes"


@dataclass(frozen=True, slots=True)
class Timers:
    """What the timer keys of deadlines begin with; the order's id follows."""

    order_timeouts: str = "order:"


@dataclass(frozen=True, slots=True)
class Bodies:
    """The fields of the messages' JSON bodies; `sku` and `quantity` are those of each of the `lines`."""

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
    """The currency (ISO 4217) of amounts whose order names none."""

    currency: str = ""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """What the keys of carts and of their ledgers begin with; a customer's id follows."""

    cart: str = "cart:"
    ledger: str = "cart-ledger:"


def _as_in_the_shop(ours: str) -> TableMapping:
    """Return a table as the shop has it."""
    columns = {name: name for name in COLUMNS[ours] if name not in ABSENT.get(ours, ())}
    return TableMapping(ours, NAMES_DEFAULT.get(ours, ours), columns)


@dataclass(frozen=True, slots=True)
class Mapping:
    """All that may be called differently."""

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
        """Return the group that acts on each topic that there is, by the user's names."""
        named = {
            getattr(self.topics, one.name): getattr(self.groups, one.name) for one in fields(self.groups)
        }
        return {topic: group for topic, group in named.items() if topic}


SHOP: Final = Mapping()
"""The shop's own names."""

Section = TypeVar("Section", Topics, Groups, Timers, Bodies, Amounts, RedisKeys)


def has_times(ours: str) -> bool:
    """Return whether a table of ours has columns of times, to which a zone belongs."""
    return any(name.endswith("_ms") for name in COLUMNS[ours])


def read_mapping(path: Path) -> Mapping:
    """Return the mapping of a TOML file.

    Raises:
        ConfigurationError: when there is no such file, it is no TOML, or it names what there is not.
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
        ConfigurationError: when it names what there is not, or gives a name that is none.
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
    """Return their value -> ours."""
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
    """Return their value -> ours, with our own words as none of ours where they have other names."""
    return {ours: ours + NOT_OURS for ours in values.values()} | dict(values)


def _refuse_unknown(given: dict[str, Any], known: list[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{where} has the unknown name '{name}'. There are {', '.join(known)}.")


def _require_text(value: Any, name: str, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where}: {name} = {value!r} is no name. Give a text in quotes.")


def _refuse_same_topics(topics: Topics, shown: str) -> None:
    """Raise `ConfigurationError` if two of our topics have one name: their messages could not be told
    apart.
    """
    named = [name for name in topics.all if name]
    if len(set(named)) < len(named):
        raise ConfigurationError(
            f"{shown} [topics] gives two of our topics the same name. Each needs its own; "
            f"they are {', '.join(topics.all)}."
        )
