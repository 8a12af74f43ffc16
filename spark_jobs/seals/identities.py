"""What a window of event time holds: the identities of each stage, in one order, and their digest.

    stage      an identity is                                    in the window of
    placed     id | customer | total | placed_ms | due_ms        placed_ms       the order's row
               and | currency, where a mapping says in what the totals are
    committed  id | committed_ms                                 committed_ms    the order-created message
    decided    id | what | when                                  when            paid, timed out, cancelled
    cleared    id | cleared_ms                                   cleared_ms      the cart's ledger
    fired      id | delivered_ms                                 delivered_ms    the deadline's message

An order that is paid in one window and cancelled in a later one is decided twice, each in its own window: so
nothing that may still happen changes a window that has passed.

The digest of a stage is the SHA-256 of its identities, sorted by their bytes, each followed by a newline:
`LC_ALL=C sort | sha256sum` of the same lines gives the same. So it does not depend on how the orders are
divided into files or among workers. What has no value is empty; in a text a backslash, a bar and a newline
are written \\\\, \\p and \\n.

Cost: a pass over the columns of a stage for about every two million identities, about 0.3 kB of memory each.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

IDENTITIES_PER_GROUP: Final = 2_000_000
_BATCH_ROWS: Final = 65_536
_SEPARATOR: Final = "|"
_ESCAPES: Final = (("\\", "\\\\"), (_SEPARATOR, "\\p"), ("\n", "\\n"))
_WRITTEN: Final = {written: found for found, written in _ESCAPES}
_ESCAPED: Final = re.compile(r"\\[\\pn]")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens to an order: the column that says when, and what else its identity holds."""

    column: str
    label: str = ""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of an order's life; `of_log` if only the log knows of it."""

    name: str
    events: tuple[Event, ...]
    of_log: bool = False


_ROW: Final = ("customer_id", "total_pence", "placed_ms", "due_ms")

STAGES: Final = (
    Stage("placed", (Event("placed_ms", fields=_ROW),)),
    Stage("committed", (Event("committed_ms", fields=("committed_ms",)),), of_log=True),
    Stage(
        "decided",
        (
            Event("paid_ms", "paid", ("paid_ms",)),
            Event("timed_out_ms", "timed out", ("timed_out_ms",)),
            Event("cancelled_ms", "cancelled", ("cancelled_ms",)),
        ),
    ),
    Stage("cleared", (Event("cleared_ms", fields=("cleared_ms",)),)),
    Stage("fired", (Event("delivered_ms", fields=("delivered_ms",)),), of_log=True),
)

_STAGES_WITH_CURRENCY: Final = (
    Stage("placed", (Event("placed_ms", fields=(*_ROW, "currency")),)),
    *STAGES[1:],
)

EVENT_COLUMNS: Final = tuple(event.column for stage in STAGES for event in stage.events)

_ORDERS: Final = pa.schema(
    [
        ("order_id", pa.string()),
        ("customer_id", pa.string()),
        ("total_pence", pa.int64()),
        ("due_ms", pa.int64()),
        ("currency", pa.string()),
    ]
    + [(column, pa.int64()) for column in EVENT_COLUMNS]
)

IDENTITIES: Final = pa.schema(
    [("window_ms", pa.int64()), ("stage", pa.string()), ("identity", pa.large_string())]
)
"""The identities of windows, as they are kept: sorted by window and identity within a stage."""


@dataclass(frozen=True, slots=True)
class Contents:
    """How many identities one stage of one window has, and their digest (64 hexadecimal digits)."""

    count: int
    digest: str


NOTHING: Final = Contents(0, hashlib.sha256().hexdigest())


@dataclass(frozen=True, slots=True)
class Span:
    """Windows of `width_ms` whose starts are in [from_ms, to_ms), both multiples of the width."""

    from_ms: int
    to_ms: int
    width_ms: int


def stages_of(has_currency: bool) -> tuple[Stage, ...]:
    """Return the stages of windows that were sealed with, or without, the currencies of totals."""
    return _STAGES_WITH_CURRENCY if has_currency else STAGES


def open_orders(folder: Path) -> Any:
    """Return the orders of a run as a data set of the columns that make identities; empty without files."""
    return ds.dataset(folder, schema=_ORDERS, format="parquet")


class Fact(NamedTuple):
    """One thing that happened: when, which column says so, of which order."""

    at_ms: int
    column: str
    order_id: str


def newest(orders: Any, columns: Iterable[str]) -> Fact | None:
    """Return the newest fact in any of the columns."""
    found: Fact | None = None
    for batch in orders.to_batches(columns=["order_id", *columns], batch_size=_BATCH_ROWS):
        for column in columns:
            top = pc.max(batch.column(column)).as_py()
            if top is not None and (found is None or top > found.at_ms):
                place = pc.index(batch.column(column), top).as_py()
                found = Fact(top, column, batch.column("order_id")[place].as_py())
    return found


def oldest_ms(orders: Any) -> int | None:
    """Return when the first thing happened of all that is sealed; None if nothing has."""
    first = [
        least
        for batch in orders.to_batches(columns=list(EVENT_COLUMNS), batch_size=_BATCH_ROWS)
        for column in batch.columns
        if (least := pc.min(column).as_py()) is not None
    ]
    return min(first, default=None)


def rows_of(orders: Any, order_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of some orders, by id, with every column that makes identities."""
    wanted = pa.array(sorted(set(order_ids)), pa.string())
    found = orders.to_table(columns=_ORDERS.names, filter=ds.field("order_id").isin(wanted))
    return {row["order_id"]: row for row in found.to_pylist()}


def groups(orders: Any, span: Span) -> Iterator[Span]:
    """Yield the span in parts of about `IDENTITIES_PER_GROUP` identities, without empty ends."""
    counts = _identities_by_window(orders, span)
    first, held = None, 0
    for window in sorted(counts):
        if first is not None and held + counts[window] > IDENTITIES_PER_GROUP:
            yield Span(first, window, span.width_ms)
            first, held = None, 0
        first, held = (window if first is None else first), held + counts[window]
    if first is not None:
        yield Span(first, max(counts) + span.width_ms, span.width_ms)


def _identities_by_window(orders: Any, span: Span) -> Counter[int]:
    counts: Counter[int] = Counter()
    for batch in orders.to_batches(columns=list(EVENT_COLUMNS), batch_size=_BATCH_ROWS):
        for column in batch.columns:
            times = column.drop_null().to_numpy(zero_copy_only=False)
            inside = times[(times >= span.from_ms) & (times < span.to_ms)]
            windows, rows = np.unique(inside // span.width_ms * span.width_ms, return_counts=True)
            counts.update(dict(zip(windows.tolist(), rows.tolist(), strict=True)))
    return counts


def identities(orders: Any, stage: Stage, span: Span) -> pa.Table:
    """Return the identities of one stage in a span, as `IDENTITIES`, by window and then by their bytes."""
    tables = [_identities(orders, stage, event, span) for event in stage.events]
    return pa.concat_tables(tables).sort_by([("window_ms", "ascending"), ("identity", "ascending")])


def _identities(orders: Any, stage: Stage, event: Event, span: Span) -> pa.Table:
    when = ds.field(event.column)
    columns = list(dict.fromkeys(("order_id", event.column, *event.fields)))
    rows = orders.to_table(columns=columns, filter=(when >= span.from_ms) & (when < span.to_ms))
    times = rows[event.column].to_numpy()
    return pa.table(
        [
            pa.array(times // span.width_ms * span.width_ms, pa.int64()),
            pa.repeat(stage.name, rows.num_rows),
            _joined(rows, event),
        ],
        schema=IDENTITIES,
    )


def _joined(rows: pa.Table, event: Event) -> Any:
    label = [event.label] if event.label else []
    parts = [_text(rows["order_id"]), *label, *(_text(rows[name]) for name in event.fields)]
    joined = pc.binary_join_element_wise(*parts, _SEPARATOR, null_handling="replace", null_replacement="")
    return joined.cast(pa.large_string())


def _text(column: Any) -> Any:
    """Return a column as text in which no separator occurs."""
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    if not pc.any(pc.match_substring_regex(column, r"[\\|\n]")).as_py():
        return column
    for found, written in _ESCAPES:
        column = pc.replace_substring(column, pattern=found, replacement=written)
    return column


def order_id_of(identity: str) -> str:
    """Return the order that an identity is of."""
    return _unescaped(identity.partition(_SEPARATOR)[0])


def values_of(stage: Stage, identity: str) -> dict[str, Any]:
    """Return what an identity holds, by column: times and totals as numbers, None for what is empty."""
    _, *parts = (_unescaped(part) for part in identity.split(_SEPARATOR))
    events = {event.label: event for event in stage.events}
    event = events[parts.pop(0) if "" not in events else ""]
    texts = {"customer_id", "currency"}
    return {
        name: None if part == "" else part if name in texts else int(part)
        for name, part in zip(event.fields, parts, strict=True)
    }


def _unescaped(part: str) -> str:
    return _ESCAPED.sub(lambda found: _WRITTEN[found[0]], part)


def contents_of(found: Iterable[str]) -> Contents:
    """Return the contents of one stage of one window with these identities, in any order."""
    lines = sorted(f"{one}\n".encode() for one in found)
    return Contents(len(lines), hashlib.sha256(b"".join(lines)).hexdigest())


def contents(sorted_identities: pa.Table) -> dict[int, Contents]:
    """Return the contents of each window of one stage's identities, which are sorted as `identities` sorts
    them.
    """
    windows = sorted_identities["window_ms"].to_numpy()
    empty, newline = (pa.scalar(text, pa.large_string()) for text in ("", "\n"))
    lines = pc.binary_join_element_wise(sorted_identities["identity"], empty, newline).combine_chunks()
    if not len(lines):
        return {}
    ends = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    data = memoryview(lines.buffers()[2])
    starts = np.flatnonzero(np.concatenate(([True], windows[1:] != windows[:-1])))
    stops = np.append(starts[1:], len(windows))
    return {
        int(windows[start]): Contents(
            int(stop - start), hashlib.sha256(data[ends[start] : ends[stop]]).hexdigest()
        )
        for start, stop in zip(starts, stops, strict=True)
    }
