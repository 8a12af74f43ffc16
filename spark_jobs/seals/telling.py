"""Descriptions of the changes in closed books, by order, for accountants.

A change of a window is a sealed identity that is gone, or an identity that was not sealed (`changes`). An
accountant needs the values of the order then and now, so the sealed values are compared with the order's
present row in any window. An order whose time has moved to another window is neither gone nor new.

    appeared   its row was in no sealed window
    vanished   the order database no longer has it
    changed    each sealed or new value that differs

Totals are compared with their currency, and added up by currency. The totals of a window that was sealed
without currencies are in that of the order's present row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from spark_jobs.amounts import amount, amounts, code_of
from spark_jobs.names import OrderNames
from spark_jobs.seals.identities import EVENT_COLUMNS, Stage, values_of

Values = dict[str, Any]
"""Sealed or present values of an order, by our column names."""

NAMED_MAX: Final = 5
"""Maximum number of orders that a description names for each kind."""
KINDS: Final = ("changed", "vanished", "appeared")
TOTAL: Final = "total_pence"
CURRENCY: Final = "currency"


@dataclass(frozen=True, slots=True)
class Difference:
    """An order of a sealed window that differs from its seal. `words` contains the old and new values."""

    kind: str
    order_id: str
    words: str


class Window(Protocol):
    """A changed window, with the increase of its orders' totals by currency."""

    @property
    def sums(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """Values of one order in a window by column: those that are gone (`was`), and new ones (`now`)."""

    was: Values
    now: Values


class Teller:
    """The changes of all windows, and the present rows of their orders."""

    def __init__(self, rows: dict[str, Values], names: OrderNames) -> None:
        self._rows, self._names = rows, names
        self._was: dict[str, Values] = defaultdict(dict)
        self._now: dict[str, Values] = defaultdict(dict)

    def note(self, of_orders: dict[str, Sealed]) -> None:
        """Add the changes of one window, because an order may have moved to another one."""
        for order_id, sealed in of_orders.items():
            self._was[order_id] |= sealed.was
            self._now[order_id] |= sealed.now

    def differences(self, of_orders: dict[str, Sealed]) -> list[Difference]:
        """Return the differences of one window, sorted by kind and order."""
        found = [self._difference(order_id, sealed) for order_id, sealed in sorted(of_orders.items())]
        return sorted(found, key=lambda one: KINDS.index(one.kind))

    def sums(self, of_orders: dict[str, Sealed]) -> dict[str, int]:
        """Return the increase of orders' totals by currency (negative for a decrease).

        An order counts in the window in which its row was sealed, and an order not sealed before in its
        present one.
        """
        found: Counter[str] = Counter()
        for order_id, sealed in of_orders.items():
            row = self._rows.get(order_id, {})
            is_new = TOTAL in sealed.now and TOTAL not in self._was[order_id]
            found[_currency(sealed.was, row)] -= sealed.was.get(TOTAL) or 0
            if is_new or (TOTAL in sealed.was and _has(row, "placed_ms")):
                found[_currency(row, row)] += row.get(TOTAL) or 0
        return {currency: more for currency, more in sorted(found.items()) if more}

    def _difference(self, order_id: str, sealed: Sealed) -> Difference:
        row, was = self._rows.get(order_id, {}), self._was[order_id]
        if not row or (_has(was, "placed_ms") and not _has(row, "placed_ms")):
            return Difference("vanished", order_id, self._of_vanished(was, sealed))
        if not was and "placed_ms" in self._now[order_id]:
            return Difference("appeared", order_id, self._of_appeared(sealed, row))
        return Difference("changed", order_id, self._of_changed(was, sealed, row))

    def _of_vanished(self, was: Values, sealed: Sealed) -> str:
        """Return the description of a vanished order: its sealed total, else the times in this window."""
        names = [TOTAL] if _has(was, TOTAL) else [name for name in sealed.was if name in EVENT_COLUMNS]
        return ", ".join(self._said(name, "was", was, was) for name in names)

    def _of_appeared(self, sealed: Sealed, row: Values) -> str:
        names = [name for name in sealed.now if name == TOTAL or name in EVENT_COLUMNS]
        return ", ".join(self._said(name, "is", row, row) for name in names if _has(row, name))

    def _of_changed(self, was: Values, sealed: Sealed, row: Values) -> str:
        changed = [name for name in (*sealed.was, *sealed.now) if name != CURRENCY]
        names = sorted(changed, key=lambda name: name != TOTAL)
        words = [
            f"{self._said(name, 'was', was, row)} and {self._said(name, 'is', row, row, with_name=False)}"
            for name in dict.fromkeys(names)
            if self._value(name, was, row) != self._value(name, row, row)
        ]
        return ", ".join(words) or "it was written anew"

    def _said(self, name: str, verb: str, values: Values, row: Values, with_name: bool = True) -> str:
        """Return the phrase for the value of an order's column."""
        subject = f"{self._names.of(name)} " if with_name else ""
        return f"{subject}{verb} {self._value(name, values, row)}"

    def _value(self, name: str, values: Values, row: Values) -> str:
        value = values.get(name)
        if value is None:
            return "not there"
        if name == TOTAL:
            return amount(value, _currency(values, row))
        return exact_moment(value) if name.endswith("_ms") else str(value)


def sealed_of(changes: Iterable[tuple[Stage, str, str | None, str | None]]) -> dict[str, Sealed]:
    """Return the gone and new values of each order in a window.

    `changes` are (stage, order ID, sealed identity or None, present identity or None).
    """
    found: dict[str, Sealed] = {}
    for stage, order_id, was, now in changes:
        sealed = found.setdefault(order_id, Sealed({}, {}))
        sealed.was.update(values_of(stage, was) if was is not None else {})
        sealed.now.update(values_of(stage, now) if now is not None else {})
    return found


def sentence(seal: int, differences: Sequence[Difference], sums: dict[str, int], order: str) -> str:
    """Return the description of a changed window.

    It contains the number of orders and the first ones of each kind, and in a second sentence the changes of
    totals, if any.
    """
    told = [
        f"{len(found):,} {kind}: {_named(found, order)}"
        for kind in KINDS
        if (found := [one for one in differences if one.kind == kind])
    ]
    counted = f"It was sealed by seal {seal} and has changed since: {'; '.join(told)}."
    return f"{counted} {summed(sums)}".rstrip()


def summed(sums: dict[str, int]) -> str:
    """Return a sentence with the increases and decreases of totals, empty if there are none."""
    more = amounts({currency: one for currency, one in sums.items() if one > 0})
    less = amounts({currency: -one for currency, one in sums.items() if one < 0})
    told = [f"{text} {word}" for text, word in ((more, "more"), (less, "less")) if text]
    return f"In sum {' and '.join(told)} than was sealed." if told else ""


def added_up(windows: Iterable[Window]) -> str:
    """Return a sentence with the sum of the changes of all windows."""
    sums: Counter[str] = Counter()
    for one in windows:
        sums.update(one.sums)
    return summed(sums) or "In sum the totals are what was sealed."


def _named(found: Sequence[Difference], order: str) -> str:
    shown = ", ".join(f"{order} {one.order_id} ({one.words})" for one in found[:NAMED_MAX])
    left = len(found) - NAMED_MAX
    return f"{shown} and {left:,} more" if left > 0 else shown


def _currency(values: Values, row: Values) -> str:
    """Return the currency of a total, or that of the present row if it was sealed without one."""
    return code_of(values.get(CURRENCY)) or code_of(row.get(CURRENCY))


def _has(values: Values, name: str) -> bool:
    return values.get(name) is not None


def exact_moment(ms: int) -> str:
    """Return milliseconds since 1970 as UTC time, to the millisecond."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC"
