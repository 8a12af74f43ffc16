"""Audit results: metrics, and cases and findings as text or JSON."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from services.cli.audit import runs
from services.cli.terminal import output
from services.times.display import wall

if TYPE_CHECKING:
    from spark_jobs.report.summary import AuditSummary

FINDINGS_SHOWN = 20


def publish(out: Path) -> None:
    """Write the metrics of the newest run for Prometheus."""
    from services.ops.metrics.audit_metrics import AuditMetrics

    AuditMetrics(out).write()


def show_summary(summary: AuditSummary, as_json: bool) -> None:
    """Print the cases, the first findings, and the path of the report."""
    if as_json:
        output.print_json(summary.as_json())
        return
    runs.tell_lacking(summary.about)
    others = {name: count for name, count in summary.others.items() if count}
    counts = [*summary.cases.items(), ("all orders", summary.totals["orders"]), *others.items()]
    output.print_table(("case", "orders"), counts)
    if summary.findings:
        output.show("")
        shown = summary.findings[:FINDINGS_SHOWN]
        output.print_table(
            ("subject", "case", "why"),
            ((runs.named(one), one.case, one.why) for one in shown),
            prose=("why",),
        )
        runs.tell_left(len(shown), summary.findings_count, summary.report_path.parents[2])
    if summary.cases.get("not-covered"):
        began = f"{datetime.fromtimestamp(summary.about['log_began_ms'] / 1_000):%Y-%m-%dT%H:%M:%S}"
        out = quote(str(summary.report_path.parents[2]))
        output.say(
            "not-covered: these orders could not be judged; why: "
            f"tidewheel audit show --case not-covered --out {out}. "
            f"Those that are older than the log are left out with: --from {began}"
        )
    for one in summary.about.get("unjudged", ()):
        output.show("", one)
    for one in summary.about["left_out"]:
        output.show("", f"Left out of {one}")
    from spark_jobs.report.epochs import epochs_in_words

    if words := epochs_in_words(summary.about["epochs"], wall):
        output.show("", f"{words}")
    output.show(
        "", f"The books {'balance' if summary.balanced else 'do not balance'}. Report: {summary.report_path}"
    )
