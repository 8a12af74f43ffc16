"""`tidewheel audit`: verify that messages, orders and carts agree, show earlier results, and seal the books.

    init           proposes a mapping of your tables and audits the last hour
    run            reads all stores and checks all orders             0 balanced, 1 findings, 2 not completed
    ls, show       show the results of earlier runs
    mapping        shows all names that a mapping of your tables can contain
    plan           shows possible repairs of the findings of a run without a change
    seal           closes past windows of event time
    verify-seals   compares closed windows with the data of a run     0 unchanged, 1 changed, 2 not completed
    schedule       runs the audit every night and exports metrics

`tidewheel audit --store ...` without a subcommand is `run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from services.cli.audit import books, init, plan, runs, schedule
from services.cli.audit.options import (
    FINDINGS,
    CartsOption,
    MappingOption,
    OrdersOption,
    OutOption,
    PushesOption,
    StoreOption,
    answering,
    limit_option,
    limits,
    refuse_seal_of_part,
    span_option,
    stepping,
)
from services.cli.audit.results import publish, show_summary
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.listing import lists


class RunUnlessSaid(TyperGroup):
    """A command group that runs `run` if it is called with options only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` if the first argument is an option."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    add_completion=False,
    cls=RunUnlessSaid,
    no_args_is_help=True,
    help="Prove that messages, orders and carts agree; look at earlier proofs, close the books.\n\n"
    "Example: tidewheel audit ls",
)


@app.command()
def run(
    store: StoreOption,
    orders: OrdersOption,
    carts: CartsOption = None,
    pushes: PushesOption = None,
    mapping: MappingOption = None,
    out: OutOption = Path("audit-out"),
    from_: Annotated[str, span_option("Only orders placed at or after this time.", "--from")] = "",
    to: Annotated[str, span_option("Only orders placed before this time.", "--to")] = "",
    as_of: Annotated[str, span_option("Time of the evaluation; default: the time of the last record.")] = "",
    window: Annotated[str, span_option("Width of the windows of event time.")] = "5m",
    grace: Annotated[str, limit_option("Largest difference between the clocks of shop and broker.")] = "1m",
    undecided_limit: Annotated[
        str, limit_option("Longest time for which a half message may have no outcome.")
    ] = "10m",
    late_limit: Annotated[str, limit_option("Longest delay of setting or firing a deadline.")] = "1m",
    unconsumed_limit: Annotated[
        str, limit_option("Longest time for which a message may be unacknowledged.")
    ] = "1h",
    watermark: Annotated[str, limit_option(books.ALLOWANCE)] = books.WATERMARK,
    has_plan: Annotated[
        bool, typer.Option("--plan", help="Also write a repair plan for the findings.")
    ] = False,
    has_seal: Annotated[bool, typer.Option("--seal", help="Also seal the windows that have passed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the broker's log with the shop's orders, carts and pushes, order by order.

    Exit code 0: the books balance; 1: there are findings; 2: the audit could not be completed.

    Example: tidewheel audit run --store ./store --orders sqlite:///orders.db --carts redis://127.0.0.1:6379/0
    """
    spans = {"grace": grace, "undecided-limit": undecided_limit, "late-limit": late_limit}
    spans |= {"unconsumed-limit": unconsumed_limit, "window": window}
    moments = {"from": from_, "to": to, "as-of": as_of}
    with answering():
        refuse_seal_of_part(has_seal, from_, to)
        options = limits(out, spans, moments, has_plan)
        allowance_ms = parse_ms(watermark, "--watermark")
        from spark_jobs.inputs.mapping import SHOP, read_mapping
        from spark_jobs.inputs.stores import Inputs
        from spark_jobs.main import audit
        from spark_jobs.seals.seals import refuse_width

        if has_seal:
            refuse_width(out, options.window_ms)
        inputs = Inputs(orders, carts, pushes, read_mapping(mapping) if mapping else SHOP)
        with stepping() as step:
            summary = audit(store, inputs, out, options, step)
        if has_plan:
            plan.write(out, options.run_id, inputs, store)
        has_changes = has_seal and books.seal_run(out, options, allowance_ms)
        publish(out)
        show_summary(summary, as_json)
        if not summary.totals["orders"]:
            output.say("No order was judged: the table has none, or none placed from --from to --to.")
    if has_changes or not summary.balanced:
        raise typer.Exit(FINDINGS)


def show_mapping(
    as_table: Annotated[
        bool, typer.Option("--table", help="Print the Markdown table of docs/audit.md.")
    ] = False,
) -> None:
    """Print an example mapping file with all names and their meanings.

    Example: tidewheel audit mapping > names.toml
    """
    from spark_jobs.inputs import mapping_docs

    with answering():
        print(mapping_docs.table() if as_table else mapping_docs.example(), end="")


lists(app)(runs.list_runs)
for name, command in (
    ("init", init.init),
    ("show", runs.show),
    ("mapping", show_mapping),
    ("plan", plan.plan),
    ("seal", books.seal),
    ("verify-seals", books.verify_seals),
):
    app.command(name)(command)
app.command("schedule", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    schedule.schedule
)
