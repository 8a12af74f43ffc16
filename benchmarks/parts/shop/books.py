"""The databases and carts of a generated shop, and the truth about its orders.

Rows are written to SQLite and Parquet a chunk of orders at a time. The carts have the format of the audit's
export, and its table of differences contains the planted ones, so no comparison is needed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import create_engine

from parts.columns import Array, digits_of
from parts.shop.chunks import Chunk
from parts.shop.stories import CART_CASE, PLANTED_PUSHES, PUSH_CASE, ROW_LAG_MS, SOUND_PUSHES
from parts.shop.templates import (
    ID_DIGITS,
    LINES_MAX,
    PLACED_MS,
    SKU_DIGITS,
    VARIANT_COUNT,
    lines_of,
    total_of,
)
from services.shop.tables import PushStatus, order_metadata, push_metadata
from spark_jobs.inputs.carts import DIFFERENCES
from spark_jobs.inputs.schemas import CARTS, LEDGER

TRUTH: Final = pa.schema([("subject", pa.string()), ("subject_id", pa.string()), ("case", pa.string())])
CLEARED_AFTER_MS: Final = 500
SURPLUS_COUNT: Final = 1
_ADDED_BEFORE_MS: Final = 5_000
_LEDGER_TWIN: Final = 5_000_000_000
"""Offset from a customer's number to that of the second customer with an entry of the same order."""
_STRANGER: Final = 4_000_000_000
"""The number of the first customer with a cart and no order."""

_ORDER_ROW: Final = "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LINE_ROW: Final = "INSERT INTO order_lines VALUES (?, ?, ?, ?)"
_PUSH_ROW: Final = "INSERT INTO pushes VALUES (?, ?, ?, 'hello', ?, ?, ?, ?, NULL)"
_LINES: Final = lines_of(LINES_MAX - 1)
_TOTALS: Final = np.array([total_of(variant) for variant in range(VARIANT_COUNT)])


class Books:
    """Writer of the databases, the carts and the truth of one shop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "carts").mkdir()
        self._orders = _database(folder / "orders.db", order_metadata)
        self._pushes = _database(folder / "pushes.db", push_metadata)
        names = {"carts": CARTS, "ledger": LEDGER, "differences": DIFFERENCES}
        self._carts = {
            name: pq.ParquetWriter(folder / "carts" / f"{name}.parquet", schema)
            for name, schema in names.items()
        }
        self._truth: list[tuple[str, str, str]] = []

    def add(self, chunk: Chunk) -> None:
        """Write the rows of a chunk of orders."""
        ids = Ids(chunk)
        self._add_orders(chunk, ids)
        self._add_pushes(chunk, ids)
        self._add_carts(chunk, ids)
        for number in np.unique(chunk.stories).tolist():
            if case := chunk.all_stories[number].case:
                found = ids.orders.take(np.flatnonzero(chunk.stories == number)).to_pylist()
                self._truth += [("order", one, case) for one in found]

    def close(self) -> dict[str, int]:
        """Close all files; return the number of findings of each case."""
        for database in (self._orders, self._pushes):
            database.commit()
            database.close()
        for writer in self._carts.values():
            writer.close()
        columns = list(zip(*self._truth, strict=True)) or [(), (), ()]
        pq.write_table(pa.table(columns, schema=TRUTH), self._folder / "truth.parquet")
        return dict(Counter(case for _, _, case in self._truth))

    def _add_orders(self, chunk: Chunk, ids: Ids) -> None:
        here = np.flatnonzero(flags(chunk, lambda story: story.row is not None))
        columns = order_columns(chunk, here)
        named = [ids.orders.take(here).to_pylist(), ids.customers.take(here).to_pylist()]
        self._orders.executemany(_ORDER_ROW, zip(*named, *columns, strict=True))
        for line, (_, quantity, price) in enumerate(_LINES):
            some = here[chunk.variants[here] % LINES_MAX >= line]
            both = zip(ids.orders.take(some).to_pylist(), ids.skus[line].take(some).to_pylist(), strict=True)
            self._orders.executemany(_LINE_ROW, [(order, sku, quantity, price) for order, sku in both])

    def _add_pushes(self, chunk: Chunk, ids: Ids) -> None:
        pushes = (*SOUND_PUSHES, *PLANTED_PUSHES)
        for place in np.flatnonzero(chunk.pushes >= 0).tolist():
            push = pushes[chunk.pushes[place]]
            push_id = ids.orders[place].as_py().replace("order", "push")
            schedule_id = push_id.replace("push", "schedule") if push.has_schedule else None
            due_ms = int(chunk.moments["push"][place])
            delivered_ms = due_ms + ROW_LAG_MS if push.status == PushStatus.DELIVERED else None
            named = (push_id, schedule_id, ids.customers[place].as_py())
            self._pushes.execute(_PUSH_ROW, (*named, push.status, due_ms, delivered_ms, push_id))
            wrong = (push_id, schedule_id) if push.is_finding else ()
            self._truth += [("push", one, PUSH_CASE) for one in wrong if one]

    def add_strangers(self, count: int) -> None:
        """Add carts of customers without orders that contradict their ledgers."""
        for number in range(count):
            customer, sku = f"customer-{_STRANGER + number:0{ID_DIGITS}d}", "sku-00000"
            is_more = number % 2 == 0
            if is_more:
                self._write("carts", [[customer], [sku], [1]])
            else:
                self._write("ledger", [[customer], ["add"], [f"add-{number}"], [sku], [1], [PLACED_MS]])
            self._write("differences", [[customer], [sku], [int(is_more)], [int(not is_more)]])
            self._truth.append(("cart", f"{customer} {sku}", CART_CASE))

    def _add_carts(self, chunk: Chunk, ids: Ids) -> None:
        for line, (_, quantity, _) in enumerate(_LINES):
            here = np.flatnonzero(chunk.variants % LINES_MAX >= line)
            self._add_ledger(chunk, ids, here, line, quantity, "add")
            has_entry = flags(chunk, lambda story: story.cart not in ("kept", "no entry"))
            self._add_ledger(chunk, ids, here[has_entry[here]], line, quantity, "order")
            kept = here[flags(chunk, lambda story: story.cart == "kept")[here]]
            self._write(
                "carts", [ids.customers.take(kept), ids.skus[line].take(kept), [quantity] * len(kept)]
            )
            lost = here[flags(chunk, lambda story: story.cart == "no entry")[here]]
            named = [ids.customers.take(lost), ids.skus[line].take(lost)]
            self._write("differences", [*named, [0] * len(lost), [quantity] * len(lost)])
        self._add_faults(chunk, ids)

    def _add_ledger(self, chunk: Chunk, ids: Ids, here: Array, line: int, quantity: int, entry: str) -> None:
        after_ms = CLEARED_AFTER_MS if entry == "order" else -_ADDED_BEFORE_MS
        entry_ids = ids.orders.take(here) if entry == "order" else ids.adds[line].take(here)
        at_ms = chunk.moments["placed"][here] + after_ms
        columns = [ids.customers.take(here), [entry] * len(here), entry_ids, ids.skus[line].take(here)]
        self._write("ledger", [*columns, [quantity] * len(here), at_ms])

    def _add_faults(self, chunk: Chunk, ids: Ids) -> None:
        """Write carts with more or less than their ledgers, and entries under a second customer."""
        for place in np.flatnonzero(
            flags(chunk, lambda story: story.cart not in ("kept", "cleared", "no entry"))
        ).tolist():
            fault = chunk.all_stories[chunk.stories[place]].cart
            customer, order = ids.customers[place].as_py(), ids.orders[place].as_py()
            sku, at_ms = ids.skus[0][place].as_py(), int(chunk.moments["placed"][place]) + CLEARED_AFTER_MS
            if fault == "surplus":
                self._write("carts", [[customer], [sku], [SURPLUS_COUNT]])
                self._write("differences", [[customer], [sku], [SURPLUS_COUNT], [0]])
            elif fault == "deficit":
                self._write("ledger", [[customer], ["add"], [f"{order}-again"], [sku], [1], [at_ms]])
                self._write("differences", [[customer], [sku], [0], [1]])
            else:
                twin = f"customer-{int(chunk.customers[place]) + _LEDGER_TWIN:0{ID_DIGITS}d}"
                self._write("ledger", [[twin], ["order"], [order], [None], [0], [at_ms]])

    def _write(self, name: str, columns: list[Any]) -> None:
        writer = self._carts[name]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, writer.schema, strict=True)]
        if len(arrays[0]):
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=writer.schema))


class Ids:
    """The ids of a chunk as text columns."""

    def __init__(self, chunk: Chunk) -> None:
        orders = digits_of(chunk.numbers, ID_DIGITS)
        self.orders = texts("order-", orders)
        self.customers = texts("customer-", digits_of(chunk.customers, ID_DIGITS))
        self.skus = [texts("sku-", digits_of(chunk.skus(line), SKU_DIGITS)) for line in range(LINES_MAX)]
        self.adds = [texts(f"add-{line}-", orders) for line in range(LINES_MAX)]


def texts(prefix: str, digits: Array) -> pa.StringArray:
    """Return the concatenation of a prefix and each row of digits, as text."""
    start = np.tile(np.frombuffer(prefix.encode(), np.uint8), (len(digits), 1))
    rows = np.ascontiguousarray(np.concatenate((start, digits), axis=1))
    edges = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(edges), pa.py_buffer(rows))


def order_columns(chunk: Chunk, here: Array) -> list[list[Any]]:
    """Return the columns of `orders` after the customer, for the orders at these indices of the chunk."""
    moments, rows = chunk.moments, [story.row for story in chunk.all_stories]
    chosen = chunk.stories[here]
    statuses = [str(row.status) if row else "" for row in rows]
    placed_ms, at_ms = moments["placed"][here], moments["at"][here]
    after_ms = np.array([row.timed_out_after_ms if row else 0 for row in rows])[chosen]
    timed_out_ms = moments["due"][here] + after_ms + ROW_LAG_MS
    return [
        [statuses[story] for story in chosen.tolist()],
        _TOTALS[chunk.variants[here]].tolist(),
        placed_ms.tolist(),
        moments["due"][here].tolist(),
        _where(at_ms, np.array([bool(row and row.has_paid) for row in rows])[chosen]),
        _where(timed_out_ms, np.array([bool(row and row.has_timed_out) for row in rows])[chosen]),
        _where(at_ms, np.array([bool(row and row.has_cancelled) for row in rows])[chosen]),
    ]


def flags(chunk: Chunk, holds: Any) -> Array:
    """Return a flag for each order of a chunk: whether a predicate holds for its story."""
    by_story = np.array([holds(story) for story in chunk.all_stories], np.bool_)
    return by_story[chunk.stories]


def _where(values: Array, present: Array) -> list[int | None]:
    found = values.astype(object)
    found[~present] = None
    listed: list[int | None] = found.tolist()
    return listed


def _database(path: Path, metadata: Any) -> sqlite3.Connection:
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA journal_mode = OFF")
    return database
