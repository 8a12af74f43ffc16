"""`tidewheel audit plan`: a repair plan for the findings of a run. Nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.audit.options import MappingOption, OutOption, answering
from services.cli.audit.runs import RunArgument
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections import Counter

    from spark_jobs.inputs.mapping import Mapping
    from spark_jobs.inputs.stores import Inputs
    from spark_jobs.runs import Run

MEANINGS = {
    "message": "to be sent; committed at once",
    "statement": "for a database",
    "command": "for an operator",
    "look": "for a person: no safe repair",
}


def plan(
    run_id: RunArgument = "newest",
    orders: Annotated[
        str | None,
        typer.Option(help="The order database; with it, messages contain the lines of their orders."),
    ] = None,
    carts: Annotated[str | None, typer.Option(help="The carts; default: carts in Redis.")] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The store of the broker; with it, commands contain the transaction ids."),
    ] = None,
    pushes: Annotated[
        str | None, typer.Option(help="The push database; with it, statements match its columns.")
    ] = None,
    mapping: MappingOption = None,
    out: OutOption = Path("audit-out"),
    as_json: JsonOption = False,
) -> None:
    """Write a repair plan for the findings of a run, as messages, statements and commands.

    Nothing is executed, and every step can safely be repeated. The exit code is 0 even if repairs are needed.

    Example: tidewheel audit plan --orders sqlite:///orders.db --store ./store
    """
    with answering():
        from spark_jobs.inputs.mapping import SHOP, read_mapping
        from spark_jobs.plan import plan as plans
        from spark_jobs.plan.sources import PlanSources
        from spark_jobs.runs import run_of

        run = run_of(out, run_id)
        names = read_mapping(mapping) if mapping else SHOP
        refuse_other_names(run, names)
        counts = plans.write(run, PlanSources(names, orders, store, carts, pushes=pushes))
        if as_json:
            with run.folders.plan.open(encoding="utf-8") as lines:  # lines end only at "\n"
                output.print_json([*map(json.loads, lines)])
        else:
            tell(counts, run.folders.plan)


def refuse_other_names(run: Run, mapping: Mapping) -> None:
    """Refuse a mapping that differs from the run's mapping, because the steps would name other tables and
    topics.

    Raises `ConfigurationError`. Only the names that are stored with the run are compared.
    """
    from spark_jobs.names import OrderNames

    theirs, given = OrderNames.of_json(run.names), OrderNames.of_mapping(mapping)
    if theirs != given:
        raise ConfigurationError(
            f"Run {run.run_id} has other names than these ({theirs.order} and {theirs.created}, not "
            f"{given.order} and {given.created}). Give --mapping the file of that run."
        )


def write(out: Path, run_id: str, inputs: Inputs, store: Path) -> None:
    """Write the plan of a run that has just ended, and print the number of steps."""
    from spark_jobs.plan import plan as plans
    from spark_jobs.plan.sources import PlanSources
    from spark_jobs.runs import run_of

    run = run_of(out, run_id)
    counts = plans.write(
        run, PlanSources(inputs.mapping, inputs.orders, store, inputs.carts, inputs.has_lines, inputs.pushes)
    )
    steps = ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "nothing to do"
    output.say(f"Plan: {steps}. {run.folders.plan}")


def tell(counts: Counter[str], path: Path) -> None:
    """Print the number of steps of each kind."""
    rows: list[tuple[Any, ...]] = [(kind, f"{counts[kind]:,}", why) for kind, why in MEANINGS.items()]
    output.print_table(("kind", "steps", "what it is"), rows, prose=("what it is",))
    output.show("", f"Nothing was carried out. Plan: {path}")
