"""What has changed in sealed windows since they were sealed: compared by digest, named by identity.

The orders of a run give the digest of every stage of every sealed window again. Where one differs, and only
there, the sealed identities are read and compared one by one. Stages of the log are compared in windows that
begin after what retention has deleted; before that nobody can tell, and they are counted as not covered.
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
    """One identity that is not as it was sealed: `was` is None if it is new, `now` if it is gone."""

    stage: str
    order_id: str
    was: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class ChangedWindow:
    """A sealed window, [start_ms, end_ms), that no longer holds what it held."""

    start_ms: int
    end_ms: int
    seal: int
    changes: list[Change]
    contents: dict[str, Contents]
    """What the stages that changed hold now."""

    differences: list[Difference]
    """The same order by order, in words."""
    sums: dict[str, int]
    """How much more its orders are worth than was sealed, by currency; `""` where none is known."""
    order: str = "order"
    """What the user calls an order."""

    @property
    def subject_id(self) -> str:
        """Return the window's name: when it begins."""
        return moment(self.start_ms)

    @property
    def why(self) -> str:
        """Return one sentence that counts, names, and adds up."""
        return sentence(self.seal, self.differences, self.sums, self.order)


@dataclass(slots=True)
class Verification:
    """What a comparison of all seals with a run's orders has found."""

    seals: int = 0
    windows: int = 0
    to_ms: int = 0
    not_covered: int = 0
    """Windows of which the log's stages could not be compared."""
    changed: list[ChangedWindow] = field(default_factory=list)


def compare(
    folder: SealFolder, seals: list[Seal], orders: Any, covered_from_ms: int, names: OrderNames = SHOPS
) -> Verification:
    """Compare the sealed windows with the orders of a run, which are called by `names`; raise `StoreDamaged`
    for broken identities.
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
    """Return the stages of windows whose contents are not the sealed ones, with what they hold now."""
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
    """Yield what the sealed windows hold now, by the stages with which each was sealed."""
    for has_currency, alike in groupby(seals, key=lambda seal: seal.has_currency):
        run = list(alike)
        for group in groups(orders, Span(run[0].from_ms, run[-1].to_ms, run[0].window_ms)):
            for stage in stages_of(has_currency):
                for start_ms, holds in contents(identities(orders, stage, group)).items():
                    yield start_ms, stage, holds


def seal_at(seals: list[Seal], start_ms: int) -> Seal:
    """Return the seal of the window that begins at a time."""
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
    """Return the changed windows, with what their orders said and say now."""
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
    """Return the identities of one stage of a window as sealed, with the corrections of later seals."""
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
    """Return changes by order: what is gone and what is new of the same order is one change."""
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
