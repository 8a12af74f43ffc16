"""`tidewheel audit ls|show`: results of earlier runs.

Only files are read; Spark and the stores are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.audit.options import OutOption, answering
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.times.display import exactly, span, wall
from tidewheel.errors import NotFound, UnknownChoice

if TYPE_CHECKING:
    from spark_jobs.report.summary import Finding
    from spark_jobs.runs import Run

RUNS = ("run", "when", "orders", "findings", "books", "report")
LIMIT = 20

RunArgument = Annotated[str, typer.Argument(help="The id of the run; default: the newest run.")]


def list_runs(
    out: OutOption = Path("audit-out"),
    limit: Annotated[int, typer.Option(help="Largest number to show; the newest are shown.", min=1)] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder, newest last.

    Example: tidewheel audit ls --out audit-out
    """
    with answering():
        from spark_jobs.runs import runs

        found = runs(out)
        if as_json:
            output.print_json([facts(run) for run in found[-limit:]])
        elif found:
            output.print_table(RUNS, map(row, found[-limit:]))
            if len(found) > limit:
                output.say(f"{len(found) - limit} older ones: --limit")
        else:
            output.say(f"{out} holds no run. Make one by: tidewheel audit run --out {out}")


def show(
    run_id: RunArgument = "newest",
    case: Annotated[str, typer.Option(help="Only findings of this case.")] = "",
    order: Annotated[str, typer.Option(help="Show one order with all its evidence.")] = "",
    out: OutOption = Path("audit-out"),
    limit: Annotated[int, typer.Option(help="Largest number of findings to show.", min=1)] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Show the cases and findings of a run, or one of its orders with the evidence.

    Example: tidewheel audit show --case cart-not-cleared
    """
    with answering():
        refuse_unknown(case)
        run = run_to_show(out, run_id)
        if order:
            found = run.order(order)
            output.print_json(found) if as_json else output.show(*evidence(found))
        elif as_json:
            output.print_json(facts(run) | {"findings": list(islice(run.of_case(case), limit))})
        else:
            tell(run, case, limit)


def run_to_show(out: Path, run_id: str) -> Run:
    """Return a run by its id. Raises `NotFound`, which explains the option --order."""
    from spark_jobs.runs import run_of

    try:
        return run_of(out, run_id)
    except NotFound as error:
        if run_id == "newest":
            raise
        raise NotFound(f"Of one order of the newest run, say --order {run_id}. {error.detail}") from error


def refuse_unknown(case: str) -> None:
    """Refuse an unknown case. `UnknownChoice` lists the known cases."""
    from spark_jobs.cases.names import CASES, OTHER_FINDINGS

    if case and case not in (*CASES, *OTHER_FINDINGS):
        raise UnknownChoice(f"--case {case}: choose from {', '.join((*CASES, *OTHER_FINDINGS))}.")


def facts(run: Run) -> dict[str, Any]:
    """Return a run as JSON values."""
    return {
        "run_id": run.run_id,
        "written_ms": run.written_ms,
        "orders": run.orders_count,
        "findings_count": run.findings_count,
        "balanced": run.is_balanced,
        "cases": run.summary["cases"],
        "others": run.summary["others"],
        "report": str(run.folders.report),
    }


def row(run: Run) -> tuple[object, ...]:
    """Return a run as a row of the table `RUNS`."""
    books = "balance" if run.is_balanced else "do not balance"
    counts = f"{run.orders_count:,}", f"{run.findings_count:,}"
    return run.run_id, wall(run.written_ms), *counts, books, run.folders.report


def tell(run: Run, case: str, limit: int) -> None:
    """Print the cases and findings of a run."""
    counts = run.summary["cases"] | run.finding_cases
    tell_lacking(run.summary)
    if not case:
        output.print_table(("case", "orders"), counts.items())
        output.show("")
    shown = list(islice(run.of_case(case), limit))
    if shown:
        rows = ((of_row(one), one["case"], one["why"] or "") for one in shown)
        output.print_table(("subject", "case", "why"), rows, prose=("why",))
    elif case:
        output.show(f"Run {run.run_id} has no order in the case {case}.")
    tell_left(len(shown), counts.get(case, 0) if case else run.findings_count, run.out, case)
    output.show(
        f"The books {'balance' if run.is_balanced else 'do not balance'}. Report: {run.folders.report}"
    )


def tell_lacking(about: dict[str, Any]) -> None:
    """Print the names of the mapping that are missing in the log, because they may explain many findings."""
    for sentence in about.get("lacking", ()):
        output.show(sentence)
    if about.get("lacking"):
        output.show("")


def tell_left(shown: int, count: int, out: Path, case: str = "") -> None:
    """Print the number of findings, or orders of a case, that are not shown."""
    if count > shown:
        from spark_jobs.cases.names import FINDINGS, OTHER_FINDINGS

        what = "findings" if case in ("", *FINDINGS, *OTHER_FINDINGS) else "orders"
        of_case = f" --case {case}" if case else ""
        output.show(
            f"These are {shown:,} of {count:,} {what}. All of them: "
            f"tidewheel audit show{of_case} --limit {count} --out {quote(str(out))}"
        )


def named(finding: Finding) -> str:
    """Return the subject of a finding: the order id, or the kind and the id."""
    return finding.subject_id if finding.subject == "order" else f"{finding.subject} {finding.subject_id}"


def of_row(row: dict[str, Any]) -> str:
    """Return the subject of a row of the findings."""
    return row["subject_id"] if row["subject"] == "order" else f"{row['subject']} {row['subject_id']}"


def evidence(row: dict[str, Any]) -> Iterator[str]:
    """Yield all facts of an order in a run, one per line."""
    yield f"{row['order_id']}   {row['case']}"
    if row.get("why"):
        yield f"  {row['why']}"
    skipped = ("order_id", "case", "why", "timeline", "subject", "subject_id", "total_pence", "currency")
    if row.get("total_pence") is not None:
        from spark_jobs.amounts import amount

        yield f"  {'total':22} {amount(row['total_pence'], row.get('currency'))}"
    for name, value in row.items():
        if name not in skipped and value not in (None, []):
            yield f"  {name.removesuffix('_ms').replace('_', ' '):22} {shown(name, value)}"
    yield from timeline(row.get("timeline") or [])


def shown(name: str, value: Any) -> object:
    """Return the value of a fact as text."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return exactly(value) if name.endswith("_ms") else value


def timeline(events: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the log records of an order, with the time between them."""
    before_ms: int | None = None
    for event in events:
        since = "" if before_ms is None else f"+{span(max(0, event['store_ms'] - before_ms))}"
        note = event.get("note") or ""
        yield (
            f"  {exactly(event['store_ms'])} {since:>10}  {event['physical_offset']:>14}"
            f"  {event['kind']:12} {event['topic'] or ''}  {note}".rstrip()
        )
        before_ms = event["store_ms"]
