"""Changes of sealed windows since their sealing: detected by digest, listed by identity.

The digest of every stage of every sealed window is computed again from the orders of a run. The sealed
identities are read and compared only where a digest differs. Stages of the log are compared only in windows
that begin after the part deleted by retention. Earlier windows are counted as not covered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_jobs.names import SHOPS, OrderNames
from spark_jobs.seals.files import CORRECTIONS, Seal, SealFolder, expected, not_as_sealed, unreadable
from spark_jobs.seals.identities import (
    IDENTITIES,
    NOTHING,
    Contents,
    Span,
    Stage,
    contents,
    contents_of,
    groups,
    identities,
    order_id_of,
    rows_of,
    stages_of,
)
from spark_jobs.seals.telling import Difference, Teller, sealed_of, sentence


@dataclass(frozen=True, slots=True)
class Change:
    """An identity that differs from the sealed one. `was` is None if it is new, `now` if it is gone."""

    stage: str
    order_id: str
    was: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class ChangedWindow:
    """A sealed window, [start_ms, end_ms), whose contents have changed."""

    start_ms: int
    end_ms: int
    seal: int
    changes: list[Change]
    contents: dict[str, Contents]
    """The present contents of the changed stages, by name."""

    differences: list[Difference]
    """The changes by order, in words."""
    sums: dict[str, int]
    """Increase of its orders' totals since sealing, by currency (`""` if unknown), in the smallest unit."""
    order: str = "order"
    """The user's word for an order."""

    @property
    def subject_id(self) -> str:
        """Return the start of the window in UTC, which is its name."""
        return moment(self.start_ms)

    @property
    def why(self) -> str:
        """Return the description of the changes: counts, names, and sums (`telling.sentence`)."""
        return sentence(self.seal, self.differences, self.sums, self.order)


@dataclass(slots=True)
class Verification:
    """Result of the comparison of all seals with a run's orders."""

    seals: int = 0
    windows: int = 0
    to_ms: int = 0
    not_covered: int = 0
    """Number of windows whose stages of the log could not be compared."""
    changed: list[ChangedWindow] = field(default_factory=list)


def compare(
    folder: SealFolder, seals: list[Seal], orders: Any, covered_from_ms: int, names: OrderNames = SHOPS
) -> Verification:
    """Compare the sealed windows with the orders of a run. `names` are the user's names for descriptions.

    Raise `StoreDamaged` if sealed identities cannot be read, or do not match their seal's digests.
    """
    wanted = expected(seals)
    found = Verification(len(seals), len(wanted), seals[-1].to_ms if seals else 0)
    if not seals:
        return found
    covered_ms = max(covered_from_ms, *(seal.covered_from_ms for seal in seals))
    found.not_covered = sum(start_ms < covered_ms for start_ms in wanted)
    different = _different(wanted, orders, seals, covered_ms)
    changes = {
        start_ms: _changes(folder, seals, orders, start_ms, stages)
        for start_ms, stages in sorted(different.items())
    }
    found.changed = _told(seals, orders, different, changes, names)
    return found


def _different(
    wanted: dict[int, dict[str, Contents]], orders: Any, seals: list[Seal], covered_ms: int
) -> dict[int, dict[Stage, Contents]]:
    """Return by window the stages whose contents differ from the sealed ones, with their present contents.

    Stages of the log in windows before `covered_ms` are omitted.
    """
    different: dict[int, dict[Stage, Contents]] = defaultdict(dict)
    ends = [seal.to_ms for seal in seals]
    left = {
        (start_ms, stage)
        for start_ms in wanted
        for stage in stages_of(seals[bisect_right(ends, start_ms)].has_currency)
    }
    for start_ms, stage, holds in _contents(orders, seals):
        left.discard((start_ms, stage))
        if holds != wanted.get(start_ms, {}).get(stage.name, NOTHING):
            different[start_ms][stage] = holds
    for start_ms, stage in left:
        if wanted[start_ms].get(stage.name, NOTHING) != NOTHING:
            different[start_ms][stage] = NOTHING
    told = {
        start_ms: {
            stage: holds for stage, holds in stages.items() if start_ms >= covered_ms or not stage.of_log
        }
        for start_ms, stages in different.items()
    }
    return {start_ms: stages for start_ms, stages in told.items() if stages}


def _contents(orders: Any, seals: list[Seal]) -> Iterator[tuple[int, Stage, Contents]]:
    """Yield the present contents of the sealed windows, for the stages with which each was sealed."""
    for has_currency, alike in groupby(seals, key=lambda seal: seal.has_currency):
        run = list(alike)
        for group in groups(orders, Span(run[0].from_ms, run[-1].to_ms, run[0].window_ms)):
            for stage in stages_of(has_currency):
                for start_ms, holds in contents(identities(orders, stage, group)).items():
                    yield start_ms, stage, holds


def seal_at(seals: list[Seal], start_ms: int) -> Seal:
    """Return the seal of the window that begins at `start_ms`."""
    return next(one for one in seals if one.from_ms <= start_ms < one.to_ms)


def _changes(
    folder: SealFolder, seals: list[Seal], orders: Any, start_ms: int, stages: dict[Stage, Contents]
) -> dict[Stage, list[Change]]:
    seal = seal_at(seals, start_ms)
    window = Span(start_ms, start_ms + seal.window_ms, seal.window_ms)
    found: dict[Stage, list[Change]] = {}
    for stage in stages:
        was = _sealed(folder, seals, seal, start_ms, stage.name)
        now = set(identities(orders, stage, window)["identity"].to_pylist())
        found[stage] = _paired(stage.name, was - now, now - was)
    return found


def _told(
    seals: list[Seal],
    orders: Any,
    different: dict[int, dict[Stage, Contents]],
    changes: dict[int, dict[Stage, list[Change]]],
    names: OrderNames,
) -> list[ChangedWindow]:
    """Return the changed windows, with the sealed and present values of their orders."""
    held = {
        start_ms: sealed_of(
            (stage, one.order_id, one.was, one.now) for stage, found in stages.items() for one in found
        )
        for start_ms, stages in changes.items()
    }
    teller = Teller(rows_of(orders, (one for window in held.values() for one in window)), names)
    for of_orders in held.values():
        teller.note(of_orders)
    return [
        ChangedWindow(
            start_ms,
            start_ms + (seal := seal_at(seals, start_ms)).window_ms,
            seal.number,
            [one for found in stages.values() for one in found],
            {stage.name: holds for stage, holds in different[start_ms].items()},
            teller.differences(held[start_ms]),
            teller.sums(held[start_ms]),
            names.order,
        )
        for start_ms, stages in changes.items()
    ]


def _sealed(folder: SealFolder, seals: list[Seal], seal: Seal, start_ms: int, stage: str) -> set[str]:
    """Return the identities of one stage of a window as sealed, with the corrections of later seals.

    Raise `StoreDamaged` if a file cannot be read, or does not match its seal's digest.
    """
    path = folder.path(seal.number, "identities.parquet")
    rows = _rows(path, IDENTITIES, start_ms, stage).sort_by("identity")
    if contents(rows).get(start_ms, NOTHING) != seal.windows.get(start_ms, {}).get(stage, NOTHING):
        raise not_as_sealed(path, seal)
    held = set(rows["identity"].to_pylist())
    for later in seals[seal.number :]:
        if stage in later.corrected.get(start_ms, {}):
            path = folder.path(later.number, "corrections.parquet")
            corrections = _rows(path, CORRECTIONS, start_ms, stage)
            held -= set(corrections["was"].to_pylist())
            held |= set(corrections["is"].drop_null().to_pylist())
            if contents_of(held) != later.corrected[start_ms][stage]:
                raise not_as_sealed(path, later)
    return held


def _rows(path: Any, schema: pa.Schema, start_ms: int, stage: str) -> pa.Table:
    wanted = (pc.field("window_ms") == start_ms) & (pc.field("stage") == stage)
    try:
        return ds.dataset(path, schema=schema).to_table(filter=wanted)
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from error


def _paired(stage: str, gone: Iterable[str], new: Iterable[str]) -> list[Change]:
    """Return the changes by order.

    The last gone and the last new identity of an order are one change, further ones are separate changes.
    """
    was = {order_id_of(identity): identity for identity in sorted(gone)}
    now = {order_id_of(identity): identity for identity in sorted(new)}
    paired = [Change(stage, one, was.get(one), now.get(one)) for one in sorted(was.keys() | now.keys())]
    alone = sorted((set(gone) | set(new)) - set(was.values()) - set(now.values()))
    return paired + [
        Change(stage, order_id_of(one), one if one in gone else None, None if one in gone else one)
        for one in alone
    ]


def moment(ms: int) -> str:
    """Return milliseconds since 1970 as UTC time, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
