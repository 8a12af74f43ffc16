"""What each time of the orders is: by the times of their messages, by their statuses, by names.

placed_ms       the time of the first message
due_ms          when the deadline's timer is due
paid_ms, timed_out_ms, cancelled_ms     set where the status says so, and not where it says another
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from spark_jobs.proposing.agreement import Share, pairs, share, time_is_near
from spark_jobs.proposing.facts import Column, Kind, Table
from spark_jobs.proposing.known import Evidence, KnownOrders
from spark_jobs.proposing.local_times import ahead, apart
from spark_jobs.proposing.proposal import Choice, Doubt, Part, not_found
from spark_jobs.proposing.words import COLUMNS, likeness

_FIRST_SECOND: Final = 978_307_200
_LAST_SECOND: Final = 4_102_444_800
"""The years 2001 to 2100."""
_TIMES: Final = {
    "placed_ms": ("order_created", "PLACED"),
    "due_ms": ("order_timeouts", ""),
    "paid_ms": ("order_paid", "PAID"),
    "timed_out_ms": ("", "TIMED_OUT"),
    "cancelled_ms": ("order_cancelled", "CANCELLED"),
}
"""Our times of orders: the topic whose message is of that time, the status that such orders have."""

_MOMENTS: Final = f"{COLUMNS['at_ms']} on ms ts le el il em op"
"""Words of names that a text must have to be taken for a time where no row has one."""

_MEANT: Final = {
    "due_ms": "until when an order had to be paid",
    "paid_ms": "when it was paid",
    "timed_out_ms": "when it was given up as not paid",
    "cancelled_ms": "when it was cancelled",
}


def choose_times(orders: KnownOrders, taken: Iterable[str]) -> Part:
    """Return the times of the orders: of each column the one time that most speaks for, and of each time the
    one column.
    """
    table = orders.found.table
    columns = [one.name for one in table.columns if one.name not in taken and _holds_times(table, one)]
    said = {(ours, name): _as_time(orders, ours, name) for ours in _TIMES for name in columns}
    chosen: dict[str, str] = {}
    for ours, name in sorted(said, key=lambda pair: -said[pair].weight):
        if said[ours, name].weight > 0 and ours not in chosen and name not in chosen.values():
            chosen[ours] = name
    choices, doubts = [], [*_seconds(orders, columns), *_zones(orders, columns)]
    for ours in _TIMES:
        if ours in chosen:
            choices.append(Choice("orders", ours, chosen[ours], said[ours, chosen[ours]].why))
        elif ours in _MEANT:
            choices.append(Choice("orders", ours, "", "none was found"))
            if _is_missed(orders, ours):
                doubts.append(not_found(_MEANT[ours], "orders", ours))
        else:
            listed = ", ".join(columns) or "none"
            said_of = f"Not found: when an order was placed (its columns with times: {listed})."
            doubts.append(Doubt(f'{said_of} Write placed_ms = "..." in [orders].', is_blocking=True))
    return Part(tuple(choices), tuple(doubts))


def _is_missed(orders: KnownOrders, ours: str) -> bool:
    """Return whether a time that no column holds would say something: its status occurs."""
    status = _TIMES[ours][1]
    return not status or status in orders.meanings.values()


def _holds_times(table: Table, column: Column) -> bool:
    """Return whether a column has times only, or none yet and the name of one."""
    if column.kind is Kind.TIME:
        return True
    there = [row for row in table.rows if row.texts.get(column.name) is not None]
    if there:
        return all(column.name in row.times for row in there)
    is_named = any(likeness(column.name, COLUMNS[ours]) for ours in _TIMES)
    if column.kind is Kind.TEXT:
        return is_named and likeness(column.name, _MOMENTS) > 0
    return is_named and column.kind is not Kind.BOOLEAN


def _as_time(orders: KnownOrders, ours: str, name: str) -> Evidence:
    reasons, weight = [], 0
    topic_name, status = _TIMES[ours]
    topic = orders.topics.topic(topic_name)
    if topic is not None:
        found = pairs(topic, orders.rows)
        near = time_is_near(
            [(one.due_ms if ours == "due_ms" else one.stored_ms, row.times.get(name)) for one, row in found]
        )
        what = "timers are due" if ours == "due_ms" else "messages were sent"
        if near.is_most:
            weight += 4
            reasons.append(f"{near} {what} about then")
        elif near.of:
            weight -= 4
    if status and status != "PLACED":
        here, elsewhere = _is_set(orders, name, status, True), _is_set(orders, name, status, False)
        if here.is_most and not elsewhere.is_most:
            weight += 2
            reasons.append(f"set in {here} orders that are {status}")
        elif here.of or elsewhere.is_most:
            weight -= 6
    if ours == "placed_ms" and not _is_set(orders, name, "", False).is_most:
        weight -= 4
    likely = likeness(name, COLUMNS[ours])
    if likely:
        weight += 1 + (likely >= max(likeness(name, COLUMNS[one]) for one in _TIMES))
        reasons.append("its name")
    is_named = likely > 0 or (bool(reasons) and not any(likeness(name, COLUMNS[one]) for one in _TIMES))
    return Evidence(weight if is_named or weight >= 4 else 0, "; ".join(reasons))


def _is_set(orders: KnownOrders, name: str, status: str, is_it: bool) -> Share:
    """Return in how many orders of the sample a column is set: of those with a status of ours, or without."""
    rows = orders.found.table.rows
    meant = [orders.meanings.get(row.texts.get(orders.status)) == status for row in rows]
    return share(
        row.texts.get(name) is not None
        for row, is_meant in zip(rows, meant, strict=True)
        if is_meant is is_it
    )


def _seconds(orders: KnownOrders, times: Sequence[str]) -> list[Doubt]:
    """Return the doubts about numbers that look like seconds since 1970, of which the audit has none."""
    doubts = []
    for column in orders.found.table.columns:
        values = [value for value in orders.found.table.values(column.name) if value.isdigit()]
        named = any(likeness(column.name, COLUMNS[one]) for one in _TIMES)
        are_seconds = values and all(_FIRST_SECOND <= int(value) < _LAST_SECOND for value in values)
        if column.kind is Kind.INTEGER and are_seconds and named and column.name not in times:
            doubts.append(
                Doubt(
                    f"Column {column.name} seems to hold seconds since 1970; the audit takes milliseconds. "
                    f"Name a view with {column.name} * 1000 as the table."
                )
            )
    return doubts


def _zones(orders: KnownOrders, times: Sequence[str]) -> list[Doubt]:
    """Return the doubt about times that say their zone, or are numbers, and are hours away from their
    messages.
    """
    spans: dict[int, list[str]] = {}
    for name in times:
        quarters, _ = ahead(orders, name)
        if quarters:
            spans.setdefault(quarters, []).append(name)
    return [
        Doubt(
            f"{'Columns' if len(names) > 1 else 'Column'} {', '.join(names)} "
            f"{'are' if len(names) > 1 else 'is'} {apart(quarters)} the messages: "
            "local times, it seems, and the audit takes them for what they say. Name a view with the time in "
            "UTC."
        )
        for quarters, names in spans.items()
    ]
