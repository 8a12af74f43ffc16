"""Detection of the zone of times without a zone, by their distance from the messages of their orders.

Rules:
- All local times of the orders are in one zone.
- The span between a column and the orders' first messages is the zone's offset if more columns agree with the
  times of messages after subtraction of the span than before.
- A column that agrees better without the subtraction is left unchanged. Examples are a deadline one hour
  after its order, which agrees with the due time of its timer, and a TIMESTAMP of MySQL, which is read in UTC
  and shows no zone.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Final

from spark_jobs.proposing.agreement import NEAR_MS, Share, pairs, time_is_near
from spark_jobs.proposing.facts import Column, Kind, Row, Table
from spark_jobs.proposing.known import KnownOrders
from spark_jobs.proposing.proposal import Choice, Doubt, Part
from spark_jobs.proposing.words import COLUMNS, likeness

QUARTER_MS: Final = 900_000
SHIFT_MAX: Final = 56
"""Maximum offset in quarters of an hour: offsets of zones are multiples of 15 min, 14 h from UTC at most."""
TIMES: Final = ("placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms")
_SAYS_ZONE: Final = re.compile(r":[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")


def in_utc(orders: KnownOrders) -> tuple[KnownOrders, Part]:
    """Return the orders with all times in UTC, and the zone of local times (if any) with a doubt."""
    table = orders.found.table
    names = [one.name for one in table.columns if _lacks_zone(table, one)]
    shifts = {name: shift for name in names if (shift := ahead(orders, name))[0]}
    if not shifts:
        return orders, Part()
    best = max(shifts, key=lambda name: (shifts[name][1].count, name))
    quarters, share = shifts[best]
    if _agreeing(orders, names, quarters) <= _agreeing(orders, names, 0):
        return orders, Part()
    local = [one for one in names if _agreeing(orders, [one], quarters) >= _agreeing(orders, [one], 0)]
    zone = offset(quarters)
    why = f"{best} is {apart(quarters)} {share} messages"
    said = (
        f"The times of {table.name} are {apart(quarters)} its messages: they seem to be local times. "
        f'zone = "{zone}" is written in [orders]. If their clocks change in summer, write the name of the '
        'zone in its place, such as "Europe/Berlin".'
    )
    return _shifted(orders, local, quarters), Part((Choice("orders", "zone", zone, why),), (Doubt(said),))


def ahead(orders: KnownOrders, name: str) -> tuple[int, Share]:
    """Return by how many quarters of an hour a column is ahead of the first messages, and of which share.

    The number is 0 unless the span is within `SHIFT_MAX` and that of most messages, at least two, and the
    column's name does not fit another time better.
    """
    topic = orders.topics.topic("order_created")
    found = pairs(topic, orders.rows) if topic else []
    spans = [row.times[name] - one.stored_ms for one, row in found if name in row.times]
    counts = Counter(
        quarter for ms in spans if abs(ms - (quarter := round(ms / QUARTER_MS)) * QUARTER_MS) <= NEAR_MS
    )
    (quarters, count), *_ = counts.most_common(1) or [(0, 0)]
    share = Share(count, len(spans))
    is_shift = 0 < abs(quarters) <= SHIFT_MAX and count > 1 and share.is_most and _is_of_placing(name)
    return (quarters if is_shift else 0), share


def apart(quarters: int) -> str:
    """Return the span between a column and its messages as text, such as `1 h ahead of`."""
    return f"{abs(quarters) / 4:g} h {'ahead of' if quarters > 0 else 'behind'}"


def offset(quarters: int) -> str:
    """Return the zone that is the given quarters of an hour ahead of UTC, such as `+01:00`."""
    hours, rest = divmod(abs(quarters), 4)
    return f"{'+' if quarters > 0 else '-'}{hours:02}:{rest * 15:02}"


def _lacks_zone(table: Table, column: Column) -> bool:
    """Return whether a column has timestamps, none of them with a zone in the sample."""
    is_time = column.kind is Kind.TIME and any(column.name in row.times for row in table.rows)
    return is_time and not any(map(_SAYS_ZONE.search, table.values(column.name)))


def _agreeing(orders: KnownOrders, names: list[str], quarters: int) -> int:
    """Return the number of pairs of a column and a topic that agree after subtraction of a span."""
    agreeing = 0
    for ours in ("order_created", "order_timeouts", "order_paid", "order_cancelled"):
        topic = orders.topics.topic(ours)
        found = pairs(topic, orders.rows) if topic else []
        for name in names:
            near: list[tuple[int | None, int | None]] = [
                (
                    one.due_ms if ours == "order_timeouts" else one.stored_ms,
                    row.times[name] - quarters * QUARTER_MS,
                )
                for one, row in found
                if name in row.times
            ]
            agreeing += time_is_near(near).is_most
    return agreeing


def _shifted(orders: KnownOrders, names: list[str], quarters: int) -> KnownOrders:
    def of_row(row: Row) -> Row:
        there = {name: row.times[name] - quarters * QUARTER_MS for name in names if name in row.times}
        return replace(row, times={**row.times, **there})

    table = orders.found.table
    moved = replace(table, rows=tuple(map(of_row, table.rows)))
    rows = {key: of_row(row) for key, row in orders.rows.items()}
    return orders._replace(found=orders.found._replace(table=moved), rows=rows)


def _is_of_placing(name: str) -> bool:
    """Return whether no other time of an order fits a name better than the time of its placing."""
    lengths = {ours: likeness(name, COLUMNS[ours]) for ours in TIMES}
    return lengths["placed_ms"] == max(lengths.values())
