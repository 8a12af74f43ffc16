"""Choice of the orders' time columns, by the times of their messages, by their statuses and by names.

placed_ms                               near the store time of the first message
due_ms                                  near the due time of the deadline's timer
paid_ms, timed_out_ms, cancelled_ms     set in orders with that status, and not in most others
paid_ms, cancelled_ms                   near the store time of the message of that end
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
"""The years 2001 to 2099 in seconds since 1970, end exclusive."""
_TIMES: Final = {
    "placed_ms": ("order_created", "PLACED"),
    "due_ms": ("order_timeouts", ""),
    "paid_ms": ("order_paid", "PAID"),
    "timed_out_ms": ("", "TIMED_OUT"),
    "cancelled_ms": ("order_cancelled", "CANCELLED"),
}
"""Time of an order by mapping name -> the topic of its message, the status of the orders that have it."""

_MOMENTS: Final = f"{COLUMNS['at_ms']} on ms ts le el il em op"
"""Words of which the name of a text column without values must contain one to be taken for a time."""

_MEANT: Final = {
    "due_ms": "until when an order had to be paid",
    "paid_ms": "when it was paid",
    "timed_out_ms": "when it was given up as not paid",
    "cancelled_ms": "when it was cancelled",
}


def choose_times(orders: KnownOrders, taken: Iterable[str]) -> Part:
    """Return the choices for the times of the orders: at most one column per time and one time per column.

    The pair with the most weight of evidence is chosen first.
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
    """Return whether a missing time deserves a doubt: its status occurs, or it has no status (due_ms)."""
    status = _TIMES[ours][1]
    return not status or status in orders.meanings.values()


def _holds_times(table: Table, column: Column) -> bool:
    """Return whether a column contains only times, or no values yet and has the name of a time."""
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
    """Return the share of sampled orders with a column set, of those with a status (without: `is_it` false).

    `status` is a status of the mapping, "" for an unknown one.
    """
    rows = orders.found.table.rows
    meant = [orders.meanings.get(row.texts.get(orders.status)) == status for row in rows]
    return share(
        row.texts.get(name) is not None
        for row, is_meant in zip(rows, meant, strict=True)
        if is_meant is is_it
    )


def _seconds(orders: KnownOrders, times: Sequence[str]) -> list[Doubt]:
    """Return the doubts about numbers that look like seconds since 1970; the audit reads milliseconds."""
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
    """Return the doubts about times that are a zone's offset away from their messages.

    Times without a zone were moved before (`local_times`), so the others usually have a zone or are numbers.
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
