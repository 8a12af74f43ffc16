"""Result of an audit: totals, the number of orders by case, and the findings with their evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.cases.names import BALANCED, CASES, FINDINGS, IN_FLIGHT, NOT_COVERED, OTHER_FINDINGS
from spark_jobs.layout import ORDER_COLUMNS, RunFolders

FINDINGS_MAX: Final = 1_000
"""Maximum number of findings in a summary. The Parquet files have all findings."""

CART_DIFFERENCES_MAX: Final = 1_000

EXAMPLES_MAX: Final = {IN_FLIGHT: 20, NOT_COVERED: 20, BALANCED: 3}

EVIDENCE: Final = (
    *(name for name in ORDER_COLUMNS if name not in ("order_id", "case", "why")),
    "timeline",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one order, push, cart, or window (`subject`), with its reason and evidence.

    `evidence` has the data of the stores by column: the `EVIDENCE` columns with a value, or in the report the
    whole row. Offsets are log offsets, and times are in ms since 1970.
    """

    subject: str
    subject_id: str
    case: str
    why: str | None
    evidence: dict[str, Any]

    @property
    def order_id(self) -> str:
        """Return the ID of the subject, which is usually an order."""
        return self.subject_id

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        order = {"order_id": self.subject_id} if self.subject == "order" else {}
        named = {"subject": self.subject, "subject_id": self.subject_id, **order}
        return named | {"case": self.case, "why": self.why, "evidence": self.evidence}


@dataclass(frozen=True, slots=True)
class Window:
    """Counts of orders by class in one window of event time, [first_ms, end_ms), in ms since 1970."""

    first_ms: int
    end_ms: int
    balanced: int = 0
    in_flight: int = 0
    not_covered: int = 0
    findings: int = 0


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Summary of an audit.

    `balanced`: there is no finding (carts that differ from their ledgers are findings), no order older than
    the log, no damaged byte, and no unreadable cart field. `cases` counts orders, and its sum is
    `totals["orders"]`. `others` counts findings that are not about an order.

    `about` has the options and the conditions of the run: options, as_of_ms, covered_from_ms, log_began_ms,
    epochs (`commitlog.epochs`), has_carts, has_currency, names, left_out, lacking (sentences: names of the
    mapping that are not in the log, a wrong zone), unjudged (sentences: data that could not be compared, and
    its amount), store, started_ms, written_ms.
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
        """Return the number of all findings. `findings` has only the first ones."""
        return sum(self.cases.get(case, 0) for case in FINDINGS) + sum(self.others.values())

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
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
    """Return at most `FINDINGS_MAX` findings, by case, and then by subject ID."""
    found: list[Finding] = []
    for case in (*FINDINGS, *OTHER_FINDINGS):
        found += read_case(run.findings, case, FINDINGS_MAX - len(found))
        if len(found) >= FINDINGS_MAX:
            break
    return found


def read_case(dataset: Path, case: str, count_max: int) -> list[Finding]:
    """Return the first rows of one case, from the run's orders or findings, sorted by ID."""
    return sorted(map(_finding, case_rows(dataset, case, count_max)), key=lambda one: one.subject_id)


def case_rows(dataset: Path, case: str, count_max: int) -> list[dict[str, Any]]:
    """Return at most `count_max` rows of one case, unchanged and in the order of the files.

    Cost: of a row group without rows of the case, only the column `case` is read.
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
    """Return every case with its count, the findings first. Omit `not-covered` if it has no orders."""
    return {case: counts.get(case, 0) for case in CASES if case != NOT_COVERED or case in counts}
