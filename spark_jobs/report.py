"""The report: one HTML file that explains itself, needs no network and no script, and prints."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from spark_jobs import charts
from spark_jobs.cases.names import CASES, FINDINGS
from spark_jobs.layout import RunFolders
from spark_jobs.segments import StoreLog
from spark_jobs.statistics import LogStatistics
from spark_jobs.summary import EXAMPLES_MAX, AuditSummary, Finding, read_case

SHOWN_PER_CASE_MAX: Final = 100

MEANINGS: Final = {
    "order-without-message": "The database has the order, the log has no committed message of it.",
    "message-without-order": "The log has a committed message, the database has no such order.",
    "paid-but-timed-out": "The order is both paid and timed out.",
    "cart-not-cleared": "The message was consumed, and what was ordered is still in the cart.",
    "in-flight": "Something that is still to come decides it.",
    "not-covered": "It is older than what is left of the log; nobody can judge it.",
    "balanced": "Database, messages and cart agree.",
}

OFFSETS: Final = {
    "half": "half_offset",
    "committed": "committed_offset",
    "acknowledged": "ack_offset",
    "dead letter": "dead_letter_offset",
    "timer": "timer_offset",
    "delivered": "delivered_offset",
    "cancelled": "cancel_offset",
}
TIMES: Final = {
    "placed": "placed_ms",
    "due": "due_ms",
    "paid": "paid_ms",
    "timed out": "timed_out_ms",
    "cancelled": "cancelled_ms",
    "cart cleared": "cleared_ms",
}


def write(
    summary: AuditSummary, statistics: LogStatistics, log: StoreLog, store: Path, run: RunFolders
) -> None:
    """Writes `summary.report_path`."""
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            statistics=statistics,
            log=log,
            store=store,
            written_ms=datetime.now(UTC).timestamp() * 1000,
            cases=[
                (case, summary.cases[case], MEANINGS.get(case, "")) for case in CASES if case in summary.cases
            ],
            findings_count=sum(summary.cases[case] for case in FINDINGS),
            shown=_shown(summary, run),
            finding_cases=FINDINGS,
            charts=[charts.messages_per_minute(statistics), charts.lateness(statistics)],
            offsets=OFFSETS,
            times=TIMES,
        )
    )
    summary.report_path.write_text(page)


def _shown(summary: AuditSummary, run: RunFolders) -> dict[str, list[Finding]]:
    """The orders that the page shows of each case."""
    shown = {}
    for case in CASES:
        count_max = EXAMPLES_MAX.get(case, SHOWN_PER_CASE_MAX)
        shown[case] = (
            read_case(run.findings if case in FINDINGS else run.orders, case, count_max)
            if summary.cases.get(case)
            else []
        )
    return shown


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("spark_jobs", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": moment, "number": number, "slug": slug}
    return environment


def moment(ms: float) -> str:
    """Milliseconds since 1970 as UTC time."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def number(value: Any) -> str:
    """A number with its thousands apart."""
    return f"{value:,}"


def slug(text: str) -> str:
    """A series' name as a CSS class."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())
