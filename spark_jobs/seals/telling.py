"""What has changed in closed books, order by order, in words for those who answer for the money.

A change of a window is an identity that was sealed and is gone, or is there and was not sealed (`changes`).
What an accountant asks is what the order said then and what it says now, so the sealed values stand beside
the order's present row, wherever that is: of an order that was dated into another window neither "gone" nor
"new" would be true.

    appeared   it was in no sealed window
    vanished   the order database does not have it any more
    changed    each value that was sealed, where it is another one now

Totals are compared with their currency, by which they are added up. A window that was sealed without
currencies has totals in that of the order's present row.
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
"""By our columns: what was sealed of an order, or what it says now."""

NAMED_MAX: Final = 5
"""How many orders a sentence names."""
KINDS: Final = ("changed", "vanished", "appeared")
TOTAL: Final = "total_pence"
CURRENCY: Final = "currency"


@dataclass(frozen=True, slots=True)
class Difference:
    """One order of a sealed window that is not as it was sealed; `words` says what it was and what it is."""

    kind: str
    order_id: str
    words: str


class Window(Protocol):
    """A window that has changed: how much more its orders are worth, by currency."""

    @property
    def sums(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """What of one order a window holds that it did not, and the other way round, by column."""

    was: Values
    now: Values


class Teller:
    """The changes of all windows, and the present rows of their orders."""

    def __init__(self, rows: dict[str, Values], names: OrderNames) -> None:
        self._rows, self._names = rows, names
        self._was: dict[str, Values] = defaultdict(dict)
        self._now: dict[str, Values] = defaultdict(dict)

    def note(self, of_orders: dict[str, Sealed]) -> None:
        """Take in what one window held: an order may have left it for another."""
        for order_id, sealed in of_orders.items():
            self._was[order_id] |= sealed.was
            self._now[order_id] |= sealed.now

    def differences(self, of_orders: dict[str, Sealed]) -> list[Difference]:
        """Return the differences of one window, by kind and order."""
        found = [self._difference(order_id, sealed) for order_id, sealed in sorted(of_orders.items())]
        return sorted(found, key=lambda one: KINDS.index(one.kind))

    def sums(self, of_orders: dict[str, Sealed]) -> dict[str, int]:
        """Return how much more (less, if negative) orders are worth now, by currency, each in the window in
        which it was placed when it was sealed.
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
        """Return what a vanished order was: its total, else the times that the window knew."""
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
        """Return what an order's column was, or is."""
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
    """Return what a window held and holds of each order, from changes: (stage, order, identity that was
    sealed, identity that is there).
    """
    found: dict[str, Sealed] = {}
    for stage, order_id, was, now in changes:
        sealed = found.setdefault(order_id, Sealed({}, {}))
        sealed.was.update(values_of(stage, was) if was is not None else {})
        sealed.now.update(values_of(stage, now) if now is not None else {})
    return found


def sentence(seal: int, differences: Sequence[Difference], sums: dict[str, int], order: str) -> str:
    """Return one sentence that counts, names the first of each kind, and adds up the totals."""
    told = [
        f"{len(found):,} {kind}: {_named(found, order)}"
        for kind in KINDS
        if (found := [one for one in differences if one.kind == kind])
    ]
    counted = f"It was sealed by seal {seal} and has changed since: {'; '.join(told)}."
    return f"{counted} {summed(sums)}".rstrip()


def summed(sums: dict[str, int]) -> str:
    """Return how much more and less orders are worth now; empty if nothing of that has changed."""
    more = amounts({currency: one for currency, one in sums.items() if one > 0})
    less = amounts({currency: -one for currency, one in sums.items() if one < 0})
    told = [f"{text} {word}" for text, word in ((more, "more"), (less, "less")) if text]
    return f"In sum {' and '.join(told)} than was sealed." if told else ""


def added_up(windows: Iterable[Window]) -> str:
    """Return what the changes of all windows come to."""
    sums: Counter[str] = Counter()
    for one in windows:
        sums.update(one.sums)
    return summed(sums) or "In sum the totals are what was sealed."


def _named(found: Sequence[Difference], order: str) -> str:
    shown = ", ".join(f"{order} {one.order_id} ({one.words})" for one in found[:NAMED_MAX])
    left = len(found) - NAMED_MAX
    return f"{shown} and {left:,} more" if left > 0 else shown


def _currency(values: Values, row: Values) -> str:
    """Return the currency of a total; that of the present row where a window was sealed without any."""
    return code_of(values.get(CURRENCY)) or code_of(row.get(CURRENCY))


def _has(values: Values, name: str) -> bool:
    return values.get(name) is not None


def exact_moment(ms: int) -> str:
    """Return milliseconds since 1970 as UTC time, to the millisecond."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC"
