"""Closed books: past windows of event time are sealed, and a later change of one is a finding.

    watermark = the newest event of the orders' rows (at most the audit's "now", `as_of_ms`) - the allowance

A window is closed when the watermark has reached its end. The rows are read before the end of the log is
noted and before the carts, so those contain all events before the newest one of the rows. A clock that is
ahead closes no window that the log has not reached. The allowance is the maximum delay of writing an event.
If no window has closed, and after each seal, `NextWindow` is the next one with the condition of its closing.
The first window is that of the oldest event, so the first seal requires an event.

    seal     the closed windows since the last seal: counts, digests, and identities of each stage
             (`identities`), and the open orders (`carried`), chained to the previous seal (`files`)
    verify   all sealed windows against the orders of a later run (`changes`)

Changes that a person accepts are stored in the next seal as corrections, by order. The windows are then
compared with their corrected contents.

Cost: seconds and some hundred MB of memory per million orders, without Spark and Java.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.layout import RunFolders
from spark_jobs.names import SHOPS, OrderNames
from spark_jobs.runs import Run
from spark_jobs.seals.carried import account, open_ids
from spark_jobs.seals.changes import ChangedWindow, Verification, compare
from spark_jobs.seals.files import CORRECTIONS, Seal, SealFolder, Windows
from spark_jobs.seals.identities import (
    IDENTITIES,
    Fact,
    Span,
    contents,
    groups,
    identities,
    newest,
    oldest_ms,
    open_orders,
    stages_of,
)
from tidewheel.errors import ConfigurationError

_ROW_TIMES: Final = ("placed_ms", "paid_ms", "timed_out_ms", "cancelled_ms")


@dataclass(frozen=True, slots=True)
class NextWindow:
    """The next window to be sealed, [start_ms, end_ms), and the condition of its closing.

    A run can seal it if its newest fact and its log are at `closes_ms` or later. `newest` is the newest fact
    in the run's rows, or None. `log_ms` is the run's `as_of_ms`, by default the last store time of its log;
    it replaces the time of a newer fact. start_ms and end_ms are None without any event.
    """

    newest: Fact | None
    log_ms: int
    watermark_ms: int
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def closes_ms(self) -> int | None:
        """Return the time that facts must reach to close the window, in milliseconds since 1970, or None."""
        return None if self.end_ms is None else self.end_ms + self.watermark_ms

    @property
    def known_ms(self) -> int | None:
        """Return the time up to which events are known in milliseconds since 1970, or None without a fact."""
        return None if self.newest is None else min(self.newest.at_ms, self.log_ms)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Result of `seal`: the new seal, the changes of sealed windows, and the next window.

    `seal` is None if no window has closed and no change was accepted. `accepted` is whether the seal contains
    corrections.
    """

    seal: Seal | None
    verification: Verification
    next: NextWindow
    accepted: bool = False


def seal(out: Path, run: Run, window_ms: int, watermark_ms: int, is_accepting: bool = False) -> Sealing:
    """Seal the windows that have closed since the last seal, by the orders of a run.

    `watermark_ms` is the allowance. Changes of earlier windows are reported, and with `is_accepting` stored
    in the seal as corrections.

    Raise `ConfigurationError` for a run over a part of the orders, a run without orders, a run older than the
    seals, or another width of windows. Raise `StoreDamaged` for damaged or changed seals, and
    `RefusedByState` if another process has written the seal.
    """
    folder, orders = SealFolder(out), _orders_of(out, run)
    seals = folder.read()
    before = seals[-1] if seals else None
    _refuse_other_width(before, window_ms)
    _refuse_older(before, run)
    verification = compare(folder, seals, orders, run.covered_from_ms, _names(run))
    begins_ms = before.to_ms if before else _first_window_ms(orders, window_ms)
    known = NextWindow(newest(orders, _ROW_TIMES), run.as_of_ms, watermark_ms)
    following = _starting(begins_ms, window_ms, known)
    closed_ms = _closed_ms(following, begins_ms, window_ms)
    is_correcting = is_accepting and bool(verification.changed)
    if begins_ms is None or closed_ms is None or (closed_ms == begins_ms and not is_correcting):
        return Sealing(None, verification, following)
    span = Span(begins_ms if before else 0, closed_ms, window_ms)
    changed = verification.changed if is_correcting else []
    made = _write(folder, before, run, orders, span, watermark_ms, changed)
    return Sealing(made, verification, _starting(closed_ms, window_ms, following), is_correcting)


def verify(out: Path, run: Run) -> Verification:
    """Compare every sealed window with the orders of a run.

    Raise `ConfigurationError` for a run over a part of the orders, a run without orders, or a run older than
    the seals. Raise `StoreDamaged` for damaged or changed seals.
    """
    folder, orders = SealFolder(out), _orders_of(out, run)
    seals = folder.read()
    _refuse_older(seals[-1] if seals else None, run)
    return compare(folder, seals, orders, run.covered_from_ms, _names(run))


def refuse_width(out: Path, window_ms: int) -> None:
    """Raise the errors of `seal` that do not depend on a run.

    Raise `ConfigurationError` if the seals have another width of windows, and `StoreDamaged` for a damaged
    chain of seals.
    """
    seals = SealFolder(out).read()
    _refuse_other_width(seals[-1] if seals else None, window_ms)


def changed_windows(
    out: Path, orders: Path, covered_from_ms: int, is_partial: bool = False, names: OrderNames = SHOPS
) -> list[ChangedWindow]:
    """Return the sealed windows that differ from the orders of a run (a folder of Parquet).

    Return an empty list without seals, or for a run over a part of the orders, which cannot be compared.
    Raise `StoreDamaged`.
    """
    folder = SealFolder(out)
    seals = folder.read()
    if not seals or is_partial:
        return []
    return compare(folder, seals, open_orders(orders), covered_from_ms, names).changed


def _names(run: Run) -> OrderNames:
    return OrderNames.of_json(run.names)


def _orders_of(out: Path, run: Run) -> Any:
    if run.is_partial:
        raise ConfigurationError(
            f"Run {run.run_id} looked only at a part of the orders. Give a run without --from and --to."
        )
    folder = RunFolders(out, run.run_id).orders
    if not folder.is_dir():
        raise ConfigurationError(f"Run {run.run_id} has no orders at {folder}. Give another run by --run.")
    return open_orders(folder)


def _refuse_other_width(before: Seal | None, window_ms: int) -> None:
    if before and before.window_ms != window_ms:
        raise ConfigurationError(
            f"The seals have windows of {before.window_ms} ms, and {window_ms} ms are asked for. "
            f"Give --window {before.window_ms}ms."
        )


def _refuse_older(before: Seal | None, run: Run) -> None:
    """Raise `ConfigurationError` for a run older than that of the newest seal: it lacks sealed events."""
    if before and run.run_id < before.run_id:
        raise ConfigurationError(
            f"Run {run.run_id} is older than run {before.run_id}, by which seal {before.number} was made. "
            "Give that one or a newer one by --run."
        )


def _first_window_ms(orders: Any, window_ms: int) -> int | None:
    """Return the start of the window of the first event, or None without events."""
    oldest = oldest_ms(orders)
    return None if oldest is None else oldest // window_ms * window_ms


def _starting(start_ms: int | None, window_ms: int, known: NextWindow) -> NextWindow:
    """Return `known` with the window that begins at `start_ms`, which is None if unknown."""
    return replace(known, start_ms=start_ms, end_ms=None if start_ms is None else start_ms + window_ms)


def _closed_ms(following: NextWindow, begins_ms: int | None, window_ms: int) -> int | None:
    """Return the end of the last closed window, or `begins_ms`, the start of the next, if none has closed."""
    if begins_ms is None or following.known_ms is None:
        return begins_ms
    return max(begins_ms, (following.known_ms - following.watermark_ms) // window_ms * window_ms)


def _write(
    folder: SealFolder,
    before: Seal | None,
    run: Run,
    orders: Any,
    span: Span,
    watermark_ms: int,
    changed: list[ChangedWindow],
) -> Seal:
    number = before.number + 1 if before else 1
    carried = open_ids(folder, before) if before else set()
    fresh = folder.begin(number)
    windows = _write_identities(orders, span, run.has_currency, fresh / "identities.parquet")
    made = Seal(
        number=number,
        run_id=run.run_id,
        written_ms=time.time_ns() // 1_000_000,
        window_ms=span.width_ms,
        watermark_ms=watermark_ms,
        covered_from_ms=run.covered_from_ms,
        from_ms=span.from_ms,
        to_ms=span.to_ms,
        before=before.digest if before else None,
        account=account(orders, carried, span, run.covered_from_ms, fresh / "open.parquet", run.has_carts),
        windows=windows,
        corrected=_write_corrections(changed, fresh / "corrections.parquet"),
        has_currency=run.has_currency,
    )
    folder.finish(fresh, made)
    return made


def _write_identities(orders: Any, span: Span, has_currency: bool, file: Path) -> Windows:
    windows: Windows = {}
    with pq.ParquetWriter(file, IDENTITIES, compression="zstd") as writer:
        for group in groups(orders, span):
            for stage in stages_of(has_currency):
                found = identities(orders, stage, group)
                writer.write_table(found)
                for start_ms, holds in contents(found).items():
                    windows.setdefault(start_ms, {})[stage.name] = holds
    return windows


def _write_corrections(changed: list[ChangedWindow], file: Path) -> Windows:
    if not changed:
        return {}
    rows = [(one.start_ms, change.stage, change.was, change.now) for one in changed for change in one.changes]
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(CORRECTIONS)]
    pq.write_table(pa.table(columns, schema=CORRECTIONS), file)
    return {one.start_ms: one.contents for one in changed}
