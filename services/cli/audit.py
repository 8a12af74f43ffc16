"""`tidewheel audit`: prove that messages, orders and carts agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import output

if TYPE_CHECKING:
    from spark_jobs.summary import AuditSummary

app = typer.Typer(add_completion=False)

EXIT_FINDINGS = 1
FINDINGS_SHOWN = 20


@app.command()
def audit(
    store: Annotated[Path, typer.Option(help="The broker's store; it may be in use.")],
    orders: Annotated[str, typer.Option(help="The order database, as an SQLAlchemy URL.")],
    carts: Annotated[str, typer.Option(help="The carts, as redis:// URL.")],
    pushes: Annotated[str | None, typer.Option(help="The push database, as an SQLAlchemy URL.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the report and its data.")] = Path("audit-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compare a broker's log with the shop's orders and carts, order by order.

    Exits with 0 if the books balance, with 1 if there are findings.

    Example: tidewheel audit --store ./store --orders sqlite:///orders.db --carts redis://127.0.0.1:6379/0
    """
    from spark_jobs.main import Inputs
    from spark_jobs.main import audit as run_audit
    from spark_jobs.options import AuditOptions, new_run_id

    inputs = Inputs(orders, carts, pushes)
    summary = run_audit(store, inputs, out, AuditOptions(new_run_id(out)), output.say)
    if as_json:
        output.print_json(summary.as_json())
    else:
        show(summary)
    if not summary.balanced:
        raise typer.Exit(EXIT_FINDINGS)


def show(summary: AuditSummary) -> None:
    """Print the cases, the first findings, and where the report is."""
    output.print_table(("case", "orders"), [*summary.cases.items(), ("all orders", summary.totals["orders"])])
    if summary.findings:
        print()
        shown = summary.findings[:FINDINGS_SHOWN]
        output.print_table(("order", "case", "why"), ((one.order_id, one.case, one.why) for one in shown))
    print(f"\nThe books {'balance' if summary.balanced else 'do not balance'}. Report: {summary.report_path}")
