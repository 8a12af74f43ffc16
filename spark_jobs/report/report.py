"""Report of an audit: one self-explanatory, printable HTML file without scripts or network access.

Its order is: whether the books balance, the windows with findings, the stages where orders are lost, the
orders with errors, and the evidence. The text is for the people responsible for the money (`meanings`). Log
offsets are included for the investigation.

Rules:
- Numbers and sentences are from `summary`, `flow`, and `statistics`. Nothing is judged here.
- Per case, the number of findings and at most `SHOWN_PER_CASE_MAX` of them are shown, so the page does not
  grow with the shop. All findings are in the Parquet files.
- All values from a store are escaped (`autoescape`). A value that is missing in the template is an error.

Cost: the column `case` of the findings once per case with findings, and the row groups of those shown. For
the examples, the same columns and row groups of the orders are read.

Limitation: if not all findings are shown, the shown ones are the first in the files, not the worst.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from commitlog.log.published_log import StoreLog
from spark_jobs.amounts import amount, amounts
from spark_jobs.cases.names import BALANCED, CASES, FINDINGS, IN_FLIGHT, NOT_COVERED, OTHER_FINDINGS
from spark_jobs.cases.table import MEANINGS as RULES
from spark_jobs.layout import RunFolders
from spark_jobs.report import charts, curves
from spark_jobs.report.epochs import epochs_in_words
from spark_jobs.report.flow import Flow, merged
from spark_jobs.report.flow_chart import TALL, WIDE, flow_chart
from spark_jobs.report.meanings import MEANINGS
from spark_jobs.report.statistics import LogStatistics
from spark_jobs.report.summary import AuditSummary, Finding, Window, case_rows
from spark_jobs.report.timeline import gap, timeline

SHOWN_PER_CASE_MAX: Final = 100
EXAMPLES_MAX: Final = 20
SQUARES_MAX: Final = 288
ROWS_MAX: Final = 500
WINDOW_MS: Final = 300_000
"""Width of windows if the summary has none."""

_PUSH_WORDS: Final = {"delivered": "sent", "scheduled": "left", "cancelled": "cancelled", "failed": "failed"}
_LIMITS: Final = {
    "undecided_limit_ms": "a message whose producer does not decide on it is a finding after",
    "unconsumed_limit_ms": "one that no consumer acknowledges, after",
    "late_limit_ms": "a deadline is late after",
    "grace_ms": "clocks may be apart by",
}
_OFFSETS: Final = {
    "half": "half_offset",
    "announced": "committed_offset",
    "dead letter": "dead_letter_offset",
    "deadline set": "timer_offset",
    "deadline cancelled": "timer_cancel_offset",
    "deadline fired": "delivered_offset",
    "payment": "paid_offset",
    "cancellation": "cancelled_offset",
}


def write(
    summary: AuditSummary,
    statistics: LogStatistics,
    found: Flow,
    log: StoreLog,
    store: Path,
    run: RunFolders,
) -> None:
    """Write `summary.report_path` from the Parquet files and figures of a run. `found` is its flow."""
    options: dict[str, Any] = summary.about.get("options", {})
    window_ms = options.get("window_ms", WINDOW_MS)
    has_carts = summary.about.get("has_carts", True)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            statistics=statistics,
            log=log,
            store=store,
            written_ms=datetime.now(UTC).timestamp() * 1000,
            flow=found,
            worth=amounts(found.worth),
            has_carts=has_carts,
            drawings=[flow_chart(found, shape, () if has_carts else ("cleared",)) for shape in (WIDE, TALL)],
            squares=merged(found.windows(window_ms), SQUARES_MAX, window_ms),
            rows_max=ROWS_MAX,
            epochs=epochs_in_words(summary.about.get("epochs", []), moment),
            cases=_case_rows(summary),
            findings_count=sum(summary.cases.get(case, 0) for case in FINDINGS),
            shown=_shown(summary, run),
            examples=_examples(summary, run),
            pushes=_pushes(summary.totals),
            charts=[charts.messages_per_minute(statistics), charts.lateness(statistics)],
            lateness=curves.lateness_over_time(statistics),
            meanings=MEANINGS,
            offsets=_OFFSETS,
            rules={case: one.what for case, one in RULES.items()},
            limits=[(what, gap(options[name])) for name, what in _LIMITS.items() if name in options],
        )
    )
    summary.report_path.write_text(page)


def _case_rows(summary: AuditSummary) -> list[tuple[str, int, str]]:
    """Return every case of orders with its count and tone.

    Cases of findings with orders are first, then the cases that are no finding, then findings without orders.
    """
    counts = summary.cases
    found = [(case, counts[case], "bad") for case in FINDINGS if counts.get(case)]
    tones = {IN_FLIGHT: "wait", NOT_COVERED: "quiet", BALANCED: "good"}
    rest = [(case, counts[case], tone) for case, tone in tones.items() if case in counts]
    none = [(case, 0, "none") for case in FINDINGS if case in counts and not counts[case]]
    return [*found, *rest, *none]


def _shown(summary: AuditSummary, run: RunFolders) -> dict[str, tuple[int, list[Finding]]]:
    """Return the count and the first findings of each finding case with findings."""
    counts = summary.cases | summary.others
    wanted = [case for case in (*FINDINGS, *OTHER_FINDINGS) if counts.get(case)]
    return {case: (counts[case], _read(run.findings, case, SHOWN_PER_CASE_MAX)) for case in wanted}


def _examples(summary: AuditSummary, run: RunFolders) -> dict[str, tuple[int, list[Finding]]]:
    """Return the count and some orders of each case that is neither a finding nor balanced."""
    wanted = [case for case in CASES if case in (IN_FLIGHT, NOT_COVERED) and summary.cases.get(case)]
    return {case: (summary.cases[case], _read(run.orders, case, EXAMPLES_MAX)) for case in wanted}


def _read(folder: Path, case: str, count_max: int) -> list[Finding]:
    """Return the first rows of one case, sorted by subject ID, with all columns as evidence."""
    found = [
        Finding(
            row.get("subject") or "order", row.get("subject_id") or row["order_id"], case, row["why"], row
        )
        for row in case_rows(folder, case, count_max)
    ]
    return sorted(found, key=lambda one: one.subject_id)


def _pushes(totals: dict[str, int]) -> dict[str, int]:
    """Return the counts of pushes by status, the known ones first, then all others in the ledger."""
    prefix = "pushes "
    counts = {name.removeprefix(prefix): count for name, count in totals.items() if name.startswith(prefix)}
    known = {word: counts.pop(status, 0) for status, word in _PUSH_WORDS.items()} if counts else {}
    return known | counts


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("spark_jobs.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "each": charts.each,
        "moment": moment,
        "minute": minute,
        "start": start,
        "number": number,
        "amount": amount,
        "plural": plural,
        "slug": slug,
        "timeline": timeline,
        "tone": tone,
        "words": words,
    }
    return environment


def moment(ms: float) -> str:
    """Return milliseconds since 1970 as UTC time, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def minute(ms: float) -> str:
    """Return milliseconds since 1970 as UTC time, to the minute."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def start(ms: float, width_ms: int) -> str:
    """Return the start (UTC) of a span, to the minute, or to the second if `width_ms` is not in minutes."""
    return minute(ms) if width_ms % 60_000 == 0 else moment(ms)[:-4]


def number(value: Any) -> str:
    """Return a number with thousands separators."""
    return f"{value:,}"


def plural(count: int, word: str) -> str:
    """Return a count with its noun, such as "1 order" or "2 orders"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def slug(text: str) -> str:
    """Return the name of a series as a CSS class."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def tone(window: Window) -> str:
    """Return the tone of a window: that of the worst class in it."""
    if window.findings:
        return "bad"
    if window.not_covered:
        return "quiet"
    if window.in_flight:
        return "wait"
    return "good" if window.balanced else "none"


def words(window: Window) -> str:
    """Return the times and the counts of a window as text."""
    counts: Iterable[tuple[int, str]] = (
        (window.findings, "in findings"),
        (window.not_covered, "not covered"),
        (window.in_flight, "in flight"),
        (window.balanced, "balanced"),
    )
    said = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"{minute(window.first_ms)} to {minute(window.end_ms)[11:]}: {said or 'no orders'}"
