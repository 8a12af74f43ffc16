"""The answer of an audit: totals, how many orders are in each case, and the findings with their evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds

from spark_jobs.cases.names import BALANCED, CASES, FINDINGS, IN_FLIGHT, NOT_COVERED

FINDINGS_MAX: Final = 1_000
"""How many findings a summary holds; the Parquet file has all."""

EXAMPLES_MAX: Final = {IN_FLIGHT: 20, NOT_COVERED: 20, BALANCED: 3}

EVIDENCE: Final = (
    "also", "customer_id", "status", "total_pence", "placed_ms", "due_ms", "paid_ms", "timed_out_ms",
    "cancelled_ms", "half_offset", "committed_offset", "committed_offsets", "ack_offset",
    "dead_letter_offset", "timer_offset", "delivered_offset", "cancel_offset", "cleared_ms", "surplus",
    "timeline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one order (or, by `subject`, push, cart or window), why, and what the stores say:
    `EVIDENCE` by name, offsets being log offsets.
    """

    subject: str
    subject_id: str
    case: str
    why: str
    evidence: dict[str, Any]

    @property
    def order_id(self) -> str:
        """The id of the subject, which mostly is an order."""
        return self.subject_id

    def as_json(self) -> dict[str, Any]:
        """The finding as plain values."""
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

    `cases` counts orders, and adds up to `totals["orders"]`; `others` counts findings about no order.
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

    def as_json(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "run_id": self.run_id,
            "balanced": self.balanced,
            "totals": self.totals,
            "cases": self.cases,
            "others": self.others,
            "findings": [one.as_json() for one in self.findings],
            "cart_differences": self.cart_differences,
            "windows": [asdict(one) for one in self.windows],
            "report": str(self.report_path),
        }


def read_findings(orders: Path) -> list[Finding]:
    """The findings among the written verdicts, by case and order."""
    found = [finding for case in FINDINGS for finding in read_case(orders, case, FINDINGS_MAX)]
    return found[:FINDINGS_MAX]


def read_case(orders: Path, case: str, count_max: int) -> list[Finding]:
    """Some orders of one case, by order id."""
    wanted = ds.dataset(orders, format="parquet").scanner(filter=ds.field("case") == case)
    rows = sorted(wanted.head(count_max).to_pylist(), key=lambda row: str(row["order_id"]))
    return [
        Finding(
            "order",
            row["order_id"],
            case,
            row["why"],
            {name: row[name] for name in EVIDENCE if row.get(name) not in (None, [])},
        )
        for row in rows
    ]


def in_case_order(counts: dict[str, int]) -> dict[str, int]:
    """Every case with its count, the findings first; of `not-covered` only where there is any."""
    return {case: counts.get(case, 0) for case in CASES if case != NOT_COVERED or case in counts}
