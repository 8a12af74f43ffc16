"""`tidewheel demo`: a complete shop with a broker, and an audit of its books."""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.terminal import output
from services.process.ending import signals_to_end
from tidewheel.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from services.shop.demo.books import Lateness
    from services.shop.demo.summary import DemoSummary

app = typer.Typer(add_completion=False)

OUT_FOLDER = Path("tidewheel-demo")
EXIT_DIFFERENT = 1
FINDINGS_SHOWN = 20
EXIT_BY_SIGNAL = 128


@app.command()
def demo(
    orders: Annotated[
        Path | None,
        typer.Option(help="CSV with the columns of Online Retail; default: generated orders."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Number of invoices to replay.", min=1)] = None,
    pay_ratio: Annotated[float, typer.Option(help="Share of the orders that are paid.", min=0, max=1)] = 0.7,
    timeout: Annotated[float, typer.Option(help="Seconds until an unpaid order times out.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Seed of payments and of generated orders.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="New folder for all files; default: a folder in ./tidewheel-demo.")
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Kill services and repeat sends during the run.")
    ] = False,
    sabotage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CASE",
            help="Corrupt one order before the audit: cart-not-cleared, order-without-message, "
            "message-without-order or paid-but-timed-out. Can be repeated.",
        ),
    ] = None,
    bugs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CASE",
            help="Let services make errors in some orders, and compare the findings of the audit with these "
            "errors: a case such as effect-twice or fired-late, or all. Can be repeated.",
        ),
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="A Redis to use instead of the bundled one, as a redis:// URL.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Start a broker and a shop, replay orders, and audit the books.

    Exit code 0: they balance; 1: they do not.

    With --bugs, exit code 0: the audit finds all of them and nothing else; 1: otherwise.

    Example: tidewheel demo --orders online_retail.csv --count 2000 --faults
    """
    require("shop", "audit")
    from services.shop.demo.settings import DemoSettings
    from services.shop.demo.story import run_demo

    for number in set(signals_to_end()) - {signal.SIGINT}:  # so that child processes are also stopped
        signal.signal(number, lambda number, _: sys.exit(EXIT_BY_SIGNAL + number))
    settings = DemoSettings(
        out=out or OUT_FOLDER / f"run-{datetime.now():%Y%m%d-%H%M%S}",
        orders=orders,
        count=count,
        pay_ratio=pay_ratio,
        timeout_s=timeout,
        seed=seed,
        faults=faults,
        sabotage=tuple(sabotage or ()),
        bugs=tuple(bugs or ()),
        redis_url=redis,
    )
    with OnStderr() as reporter:
        summary = run_demo(settings, reporter)
    if as_json:
        print(summary.as_json())
    else:
        show(summary)
    raise typer.Exit(0 if summary.as_wanted else EXIT_DIFFERENT)


class OnStderr:
    """Shows the phases of a run: a progress bar on a terminal, or one line per phase elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress: Progress = Progress(*columns, TimeElapsedColumn(), console=self._console)
        self._task: TaskID | None = None

    def __enter__(self) -> OnStderr:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()
        if self._console.is_terminal:
            self._progress.stop()

    def begin(self, phase: str, steps: int | None = None) -> None:
        """Begin a new phase."""
        self._finish()
        self._task = self._progress.add_task(phase, total=steps)
        if not self._console.is_terminal:
            self.say(f"{phase} ..." if steps is None else f"{phase}: {steps} steps ...")

    def advance(self) -> None:
        """Count one completed step."""
        if self._task is not None:
            self._progress.advance(self._task)

    def say(self, sentence: str) -> None:
        """Print a line above the progress bars."""
        self._console.print(sentence, markup=False, highlight=False)

    def _finish(self) -> None:
        if self._task is not None:
            total = self._progress.tasks[self._task].total or 1
            self._progress.update(self._task, total=total, completed=total)


def show(summary: DemoSummary) -> None:
    """Print the summary as tables."""
    output.print_table(("what", "count", "which is"), rows_of(summary), prose=("which is",))
    output.show(
        "(The report tells how late the broker was by itself: up to its log, without the shop's own work.)",
        "",
    )
    output.print_table(("audit case", "orders"), summary.audit["cases"].items())
    findings = [(found["subject_id"], found["case"], found["why"]) for found in summary.audit["findings"]]
    if findings:
        output.show("")
        output.print_table(("whom", "case", "why"), findings[:FINDINGS_SHOWN], prose=("why",))
    if summary.bugs:
        output.show("")
        output.print_table(("bug", "done", "found", "not found", "found beside"), rows_of_bugs(summary))
    verdict = "The books balance." if summary.balanced else "The books do not balance."
    if summary.bugs:
        verdict += " The audit has found " + ("every bug." if summary.bugs_found else "other than was done.")
    output.show("", f"{verdict} Report: {summary.audit['report']}")


def rows_of_bugs(summary: DemoSummary) -> Iterator[tuple[object, ...]]:
    """Yield a table row per case: the number of affected subjects, and the differences to the findings of the
    audit.
    """
    for case, one in summary.bugs.items():
        done, missed = len(one["expected"]), one["missed"]
        yield case, done, done - len(missed), ", ".join(missed) or "-", ", ".join(one["surplus"]) or "-"


def rows_of(summary: DemoSummary) -> Iterator[tuple[str, object, str]]:
    """Yield the rows of the summary: subject, count, and breakdown."""
    invoices, orders = summary.invoices, summary.orders
    yield (
        "invoices",
        invoices.invoices,
        f"{invoices.accepted} accepted + {invoices.refused} refused + {invoices.cancellations_matched} "
        f"cancellations matched + {invoices.cancellations_unmatched} unmatched",
    )
    yield (
        "orders accepted",
        invoices.accepted,
        f"{orders.paid} paid + {orders.timed_out} timed out + {orders.cancelled} cancelled "
        f"+ {orders.in_flight} in flight",
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.refused_rows.items())
    yield "rows refused", sum(summary.refused_rows.values()), reasons
    pushes = summary.pushes
    yield "pushes", sum(pushes.values()), ", ".join(f"{count} {status}" for status, count in pushes.items())
    yield "orders timed out", summary.timeout_lateness.count, lateness_text(summary.timeout_lateness)
    yield "pushes delivered", summary.push_lateness.count, lateness_text(summary.push_lateness)
    if any(summary.faults.values()):
        injected = ", ".join(f"{count} {fault}" for fault, count in summary.faults.items() if count)
        yield "faults injected", sum(summary.faults.values()), f"{injected}; {summary.restarts} restarts"
    for case, order_id in summary.sabotaged.items():
        yield "order spoiled", order_id, case


def lateness_text(lateness: Lateness) -> str:
    """Return the lateness as text. It includes the shop's processing; the report has the broker's share."""
    return (
        f"in the shop's rows {lateness.p50_ms} ms (p50), {lateness.p99_ms} ms (p99), {lateness.max_ms} ms at "
        f"most after it was due; {lateness.early_count} early"
    )
