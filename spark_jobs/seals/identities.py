"""Contents of a window of event time: the sorted identities of each stage, and their digest.

    stage      identity                                      window of       source
    placed     id | customer | total | placed_ms | due_ms    placed_ms       the order's row
               and | currency, if the mapping has the currency of totals
    committed  id | committed_ms                             committed_ms    the order-created message
    decided    id | label | time                             time            paid, timed out, cancelled
    cleared    id | cleared_ms                               cleared_ms      the cart's ledger
    fired      id | delivered_ms                             delivered_ms    the deadline's message

An order that is paid in one window and cancelled in a later one is decided in both. Later events therefore do
not change a past window.

The digest of a stage is the SHA-256 of its identities, sorted by bytes, each followed by a newline, as
computed by `LC_ALL=C sort | sha256sum`. It does not depend on the division of the orders into files or among
workers. A null is empty. A backslash, a bar, and a newline in a text are escaped as \\\\, \\p, and \\n.

Cost: a pass over the columns of a stage per two million identities, and about 0.3 kB of memory per identity.
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
    """An event of an order: the column of its time, and the label and columns in its identity."""

    column: str
    label: str = ""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of an order. `of_log` marks stages whose events are only in the log."""

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
"""The identities of windows as stored, sorted by window and identity within a stage."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The number of identities of one stage in one window, and their digest (64 hexadecimal digits)."""

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
    """Return the stages of windows that are sealed with or without the currencies of totals."""
    return _STAGES_WITH_CURRENCY if has_currency else STAGES


def open_orders(folder: Path) -> Any:
    """Return the orders of a run as a dataset of the columns of identities, empty without files."""
    return ds.dataset(folder, schema=_ORDERS, format="parquet")


class Fact(NamedTuple):
    """An event: its time in milliseconds since 1970, the column of that time, and the order's ID."""

    at_ms: int
    column: str
    order_id: str


def newest(orders: Any, columns: Iterable[str]) -> Fact | None:
    """Return the newest fact in any of the columns, or None."""
    found: Fact | None = None
    for batch in orders.to_batches(columns=["order_id", *columns], batch_size=_BATCH_ROWS):
        for column in columns:
            top = pc.max(batch.column(column)).as_py()
            if top is not None and (found is None or top > found.at_ms):
                place = pc.index(batch.column(column), top).as_py()
                found = Fact(top, column, batch.column("order_id")[place].as_py())
    return found


def oldest_ms(orders: Any) -> int | None:
    """Return the time of the first event in any stage in milliseconds since 1970, or None."""
    first = [
        least
        for batch in orders.to_batches(columns=list(EVENT_COLUMNS), batch_size=_BATCH_ROWS)
        for column in batch.columns
        if (least := pc.min(column).as_py()) is not None
    ]
    return min(first, default=None)


def rows_of(orders: Any, order_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of some orders by ID, with all columns of identities."""
    wanted = pa.array(sorted(set(order_ids)), pa.string())
    found = orders.to_table(columns=_ORDERS.names, filter=ds.field("order_id").isin(wanted))
    return {row["order_id"]: row for row in found.to_pylist()}


def groups(orders: Any, span: Span) -> Iterator[Span]:
    """Yield the span in parts of up to `IDENTITIES_PER_GROUP` identities, at least one window each.

    Empty windows at both ends are omitted.
    """
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
    """Return the identities of one stage in a span as `IDENTITIES`, sorted by window and then by bytes."""
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
    """Return a column as text, with separators escaped."""
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    if not pc.any(pc.match_substring_regex(column, r"[\\|\n]")).as_py():
        return column
    for found, written in _ESCAPES:
        column = pc.replace_substring(column, pattern=found, replacement=written)
    return column


def order_id_of(identity: str) -> str:
    """Return the order ID of an identity."""
    return _unescaped(identity.partition(_SEPARATOR)[0])


def values_of(stage: Stage, identity: str) -> dict[str, Any]:
    """Return the values of an identity by column, without the ID: times and totals as int, None if empty."""
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
    """Return the count and digest of these identities or IDs, which may be in any order."""
    lines = sorted(f"{one}\n".encode() for one in found)
    return Contents(len(lines), hashlib.sha256(b"".join(lines)).hexdigest())


def contents(sorted_identities: pa.Table) -> dict[int, Contents]:
    """Return the contents by window of one stage's identities, which must be sorted as by `identities`."""
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
