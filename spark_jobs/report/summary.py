"""The answer of an audit: totals, how many orders are in each case, and the findings with their evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.cases.names import BALANCED, CASES, FINDINGS, IN_FLIGHT, NOT_COVERED, OTHER_FINDINGS
from spark_jobs.layout import ORDER_COLUMNS, RunFolders

FINDINGS_MAX: Final = 1_000
"""How many findings a summary holds; the Parquet files have all."""

CART_DIFFERENCES_MAX: Final = 1_000

EXAMPLES_MAX: Final = {IN_FLIGHT: 20, NOT_COVERED: 20, BALANCED: 3}

EVIDENCE: Final = (
    *(name for name in ORDER_COLUMNS if name not in ("order_id", "case", "why")),
    "timeline",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one order (or, by `subject`, push, cart or window), why, and what the stores say:
    `EVIDENCE` by name, offsets being log offsets.
    """

    subject: str
    subject_id: str
    case: str
    why: str | None
    evidence: dict[str, Any]

    @property
    def order_id(self) -> str:
        """Return the id of the subject, which mostly is an order."""
        return self.subject_id

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        order = {"order_id": self.subject_id} if self.subject == "order" else {}
        named = {"subject": self.subject, "subject_id": self.subject_id, **order}
        return named | {"case": self.case, "why": self.why, "evidence": self.evidence}


@dataclass(frozen=True, slots=True)
class Window:
    """How many of the orders of one window of event time, [first_ms, end_ms), were what."""

    first_ms: int
    end_ms: int
    balanced: int = 0
    in_flight: int = 0
    not_covered: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """`balanced`: no finding, no order older than the log, carts as their ledgers say, no damaged byte.

    `cases` counts orders, and adds up to `totals["orders"]`; `others` counts findings about no order. `about`
    is what the run was told and could see: options, as_of_ms, covered_from_ms, epochs (`commitlog.epochs`),
    lacking (sentences: names of the mapping that the log does not have, a wrong zone), unjudged (sentences:
    what could not be compared, and how much of it), store, started_ms, written_ms.
    """

    run_id: str
    balanced: bool
    totals: dict[str, int]
    cases: dict[str, int]
    findings: list[Finding]
    report_path: Path
    cart_differences: list[dict[str, Any]] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def findings_count(self) -> int:
        """Return how many findings there are, of which `findings` has the first."""
        return sum(self.cases.get(case, 0) for case in FINDINGS) + sum(self.others.values())

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain values."""
        return {
            "run_id": self.run_id,
            **self.about,
            "balanced": self.balanced,
            "totals": self.totals,
            "cases": self.cases,
            "others": self.others,
            "findings": [one.as_json() for one in self.findings],
            "cart_differences": self.cart_differences,
            "windows": [asdict(one) for one in self.windows],
            "report": str(self.report_path),
        }


def read_findings(run: RunFolders) -> list[Finding]:
    """Return the first findings, by case and subject."""
    found: list[Finding] = []
    for case in (*FINDINGS, *OTHER_FINDINGS):
        found += read_case(run.findings, case, FINDINGS_MAX - len(found))
        if len(found) >= FINDINGS_MAX:
            break
    return found


def read_case(dataset: Path, case: str, count_max: int) -> list[Finding]:
    """Return some rows of one case, of the run's orders or of its findings, by id."""
    return sorted(map(_finding, case_rows(dataset, case, count_max)), key=lambda one: one.subject_id)


def case_rows(dataset: Path, case: str, count_max: int) -> list[dict[str, Any]]:
    """Return at most `count_max` rows of one case as they are written, in the order of the files.

    Cost: where no row of a row group is of the case only the column `case` is read.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(dataset.glob("[!.]*.parquet")):
        with pq.ParquetFile(path, read_dictionary=["case"]) as file:
            for group in range(file.num_row_groups):
                if len(found) >= count_max:
                    return found
                is_it = pc.equal(file.read_row_group(group, ["case"])["case"], case)
                places = pc.indices_nonzero(is_it)[: count_max - len(found)]
                if len(places):
                    found += file.read_row_group(group).take(places).to_pylist()
    return found


def _finding(row: dict[str, Any]) -> Finding:
    subject_id = row.get("subject_id") or row["order_id"]
    evidence = {name: row[name] for name in EVIDENCE if row.get(name) not in (None, [])}
    return Finding(row.get("subject") or "order", subject_id, row["case"], row["why"], evidence)


def in_case_order(counts: dict[str, int]) -> dict[str, int]:
    """Return every case with its count, the findings first; of `not-covered` only where there is any."""
    return {case: counts.get(case, 0) for case in CASES if case != NOT_COVERED or case in counts}
