"""The runs in an audit's output folder, read without Spark.

A run exists if `runs/<id>/summary.json` does (see `layout`) and has all of `FIELDS`; an unfinished run has no
summary, and is ignored. Run ids sort by time. PyArrow is only imported to read the rows of a run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_jobs.cases.names import FINDINGS, OTHER_FINDINGS
from spark_jobs.layout import RUNS, RunFolders
from tidewheel.errors import ConfigurationError, NotFound

NEWEST: Final = "newest"
_RUN_ID: Final = "run_id="
FIELDS: Final = frozenset((
    "balanced", "totals", "cases", "others", "options", "written_ms", "as_of_ms", "covered_from_ms",
    "has_carts", "has_currency", "names", "lacking",
))  # fmt: skip
"""Fields that a summary must have, since `Run` or the commands that show a run read them."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its summary as JSON types."""

    out: Path
    run_id: str
    summary: dict[str, Any]

    @property
    def folders(self) -> RunFolders:
        """Return the paths of the run's files."""
        return RunFolders(self.out, self.run_id)

    @property
    def is_balanced(self) -> bool:
        """Return whether the books balanced in this run."""
        return bool(self.summary["balanced"])

    @property
    def written_ms(self) -> int:
        """Return the time at which the run was written according to its summary, in milliseconds since 1970.

        The time of the file would be that of a copy or of a restored backup.
        """
        return int(self.summary["written_ms"])

    @property
    def orders_count(self) -> int:
        """Return the number of judged orders."""
        return int(self.summary["totals"]["orders"])

    @property
    def findings_count(self) -> int:
        """Return the number of findings about orders and other subjects."""
        return sum(self.finding_cases.values())

    @property
    def finding_cases(self) -> dict[str, int]:
        """Return case -> the number of its findings, without cases that have none."""
        cases = {name: count for name, count in self.summary["cases"].items() if name in FINDINGS}
        return {name: count for name, count in (cases | self.summary["others"]).items() if count}

    @property
    def as_of_ms(self) -> int:
        """Return the "now" of the run's judgement, in milliseconds since 1970."""
        return int(self.summary["as_of_ms"])

    @property
    def covered_from_ms(self) -> int:
        """Return the time from which no record of the log was deleted, or 0 if none was deleted.

        In milliseconds since 1970.
        """
        return int(self.summary["covered_from_ms"])

    @property
    def has_carts(self) -> bool:
        """Return whether the run has read carts."""
        return bool(self.summary["has_carts"])

    @property
    def names(self) -> dict[str, Any]:
        """Return the user's names for orders and their columns, as JSON types (`names.OrderNames`)."""
        return dict(self.summary["names"])

    @property
    def has_currency(self) -> bool:
        """Return whether the currency of orders' totals is known."""
        return bool(self.summary["has_currency"])

    @property
    def is_partial(self) -> bool:
        """Return whether the run was limited to orders placed in a range of time."""
        options = self.summary["options"]
        return (options["from_ms"], options["to_ms"]) != (None, None)

    def rows(self, case: str = "", subject_id: str = "") -> Iterator[dict[str, Any]]:
        """Yield the findings as rows of `layout.FINDING_COLUMNS`; "" selects all cases or subjects."""
        return _rows(self.folders.findings, {"case": case, "subject_id": subject_id})

    def of_case(self, case: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a case like `rows`; if it is no finding, such as `not-covered`, its orders."""
        if not case or case in (*FINDINGS, *OTHER_FINDINGS):
            yield from self.rows(case)
            return
        for row in _rows(self.folders.orders, {"case": case}):
            yield {"subject": "order", "subject_id": row["order_id"]} | row

    def order(self, order_id: str) -> dict[str, Any]:
        """Return an order as a row, with its timeline if it is a finding; raise `NotFound`."""
        for row in self.rows(subject_id=order_id):
            if row["subject"] == "order":
                return row
        for row in _rows(self.folders.orders, {"order_id": order_id}):
            return row
        raise NotFound(f"Run {self.run_id} has no order {order_id}. See: tidewheel audit ls")


def runs(out: Path) -> list[Run]:
    """Return the runs of a folder, the oldest first, without those that have no valid summary."""
    found = (_read(out, path.parent.name) for path in (out / RUNS).glob("*/summary.json"))
    return sorted((run for run in found if run), key=lambda run: run.run_id)


def run_of(out: Path, run_id: str = NEWEST) -> Run:
    """Return the run with this id, or the newest run; raise `NotFound`."""
    if run_id == NEWEST:
        newest = newest_run(out)
        if newest is None:
            raise NotFound(f"{out} holds no run of an audit. Make one by: tidewheel audit run --out {out}")
        return newest
    found = _read(out, run_id) if run_id == Path(run_id).name else None
    if found is None:
        raise NotFound(f"{out} holds no run {run_id} that can be read. See: tidewheel audit ls --out {out}")
    return found


def newest_run(out: Path) -> Run | None:
    """Return the newest run; None if there is none."""
    names = sorted((path.parent.name for path in (out / RUNS).glob("*/summary.json")), reverse=True)
    return next((run for run in (_read(out, name) for name in names) if run), None)


def scratch_prefix(pid: int) -> str:
    """Return the prefix of the temporary folders in `out` that the audit of a process uses."""
    return f"audit-{pid}-"


def forget(out: Path, keep: int) -> list[str]:
    """Delete all runs older than the newest `keep`, unfinished ones included; return the deleted ids.

    Seals stay, since they contain the identities that they need. Raise `ConfigurationError` if `keep` is less
    than 1.
    """
    if keep < 1:
        raise ConfigurationError("At least one run is kept. Give --keep 1 or more.")
    oldest = next((run.run_id for run in runs(out)[-keep:]), "")
    begun = {path.name for path in (out / RUNS).glob("*")}
    begun |= {path.name.removeprefix(_RUN_ID) for path in out.glob(f"*/{_RUN_ID}*")}
    gone = sorted(run_id for run_id in begun if run_id < oldest)
    for run_id in gone:
        folders = RunFolders(out, run_id)
        for folder in (folders.orders, folders.findings, folders.folder):
            shutil.rmtree(folder, ignore_errors=True)
    return gone


def _read(out: Path, run_id: str) -> Run | None:
    try:
        summary = json.loads(RunFolders(out, run_id).summary.read_text())
    except (OSError, ValueError):
        return None
    has_all = isinstance(summary, dict) and summary.keys() >= FIELDS
    return Run(out, run_id, summary) if has_all else None


def _rows(folder: Path, wanted: dict[str, str]) -> Iterator[dict[str, Any]]:
    files = sorted(folder.glob("*.parquet"))
    if not files:
        return
    import pyarrow.dataset as ds

    dataset = ds.dataset(files, format="parquet")
    chosen = [
        ds.field(name) == value for name, value in wanted.items() if value and name in dataset.schema.names
    ]
    condition = None
    for one in chosen:
        condition = one if condition is None else condition & one
    for batch in dataset.to_batches(filter=condition, batch_size=1_000):
        yield from batch.to_pylist()
