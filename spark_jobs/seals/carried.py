"""Orders that are open at the end of a seal, carried from seal to seal until they are complete.

An order enters the books with its first event. It waits for

    a row       its message is committed, and the database has no such order
    a message   it has a row, but no committed order-created, although the log covers its time of placing
    a decision  it has a row, and is neither paid nor timed out nor cancelled
    clearing    its message is committed, or the log does not cover its row; the cart's ledger has no entry

and is closed when it waits for nothing. Only events before the seal's end count, so runs at different times
have the same result. For every seal: carried + entered = closed + vanished + open. An order that waits
because of a finding stays open until that is repaired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.seals.files import OPEN, Account, Seal, SealFolder, not_as_sealed, unreadable
from spark_jobs.seals.identities import EVENT_COLUMNS, Contents, Span, contents_of

_NEVER: Final = np.iinfo(np.int64).max
_BATCH_ROWS: Final = 65_536


@dataclass(slots=True)
class _Tally:
    entered: int = 0
    seen: int = 0
    closed: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


def account(
    orders: Any, carried: set[str], span: Span, covered_from_ms: int, file: Path, has_carts: bool = True
) -> Account:
    """Write the orders that are open at the end of `span` to `file`, and return the account of all orders.

    `orders` is a dataset with order_id and `EVENT_COLUMNS`. `carried` are the IDs of the orders that were
    open at the start of the span. The log is complete from `covered_from_ms` (0 if nothing was deleted).
    Without carts, no order waits for clearing.
    """
    tally, ids = _Tally(), pa.array(sorted(carried), pa.string())
    for batch in orders.to_batches(columns=["order_id", *EVENT_COLUMNS], batch_size=_BATCH_ROWS):
        _add(tally, _Life(batch, span.to_ms, covered_from_ms, has_carts), ids, span.from_ms)
    rows = sorted(tally.rows, key=lambda row: str(row["order_id"]))
    pq.write_table(pa.Table.from_pylist(rows, OPEN), file)
    open_ = contents_of(str(row["order_id"]) for row in rows)
    vanished = len(carried) - tally.seen
    return Account(len(carried), tally.entered, tally.closed, vanished, open_.count, open_.digest)


def open_ids(folder: SealFolder, seal: Seal) -> set[str]:
    """Return the IDs of the orders that a seal left open.

    Raise `StoreDamaged` if the file cannot be read, or does not match the seal's digest.
    """
    file = folder.path(seal.number, "open.parquet")
    try:
        found = pq.read_table(file, schema=OPEN, columns=["order_id"])["order_id"].to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(file, error) from error
    if contents_of(found) != Contents(seal.account.open, seal.account.digest):
        raise not_as_sealed(file, seal)
    return set(found)


class _Life:
    """The state of a batch's orders at `to_ms`, as one flag per order."""

    def __init__(self, batch: Any, to_ms: int, covered_from_ms: int, has_carts: bool) -> None:
        self.order_ids = batch.column("order_id")
        times = {name: _times(batch.column(name)) for name in EVENT_COLUMNS}
        self.first_ms = np.minimum.reduce(list(times.values()))
        self.is_known = self.first_ms < to_ms
        decided_ms = np.minimum.reduce([times[name] for name in ("paid_ms", "timed_out_ms", "cancelled_ms")])
        has_row, committed, decided, cleared = (
            one < to_ms
            for one in (times["placed_ms"], times["committed_ms"], decided_ms, times["cleared_ms"])
        )
        is_told = times["placed_ms"] >= covered_from_ms
        self.waits = {
            "a row": committed & ~has_row,
            "a message": has_row & ~committed & is_told,
            "a decision": has_row & ~decided,
            "clearing": (committed | (has_row & ~is_told)) & ~cleared & has_carts,
        }


def _add(tally: _Tally, life: _Life, carried: Any, from_ms: int) -> None:
    is_carried = pc.is_in(life.order_ids, carried).to_numpy(zero_copy_only=False) & life.is_known
    is_entering = life.is_known & (life.first_ms >= from_ms) & ~is_carried
    is_open = (is_carried | is_entering) & np.logical_or.reduce(list(life.waits.values()))
    tally.seen += int(is_carried.sum())
    tally.entered += int(is_entering.sum())
    tally.closed += int((is_carried | is_entering).sum() - is_open.sum())
    for place in np.flatnonzero(is_open).tolist():
        waits_for = [name for name, flags in life.waits.items() if flags[place]]
        order_id, first_ms = life.order_ids[place].as_py(), int(life.first_ms[place])
        tally.rows.append({"order_id": order_id, "first_ms": first_ms, "waits_for": waits_for})


def _times(column: Any) -> Any:
    return column.fill_null(_NEVER).to_numpy(zero_copy_only=False)
