"""`tidewheel refused`: refused callers and the reasons."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.status.refusals import advice
from services.times.display import exactly

app = typer.Typer(add_completion=False)


@app.command()
def refused(
    why: Annotated[str, typer.Option("--why", help="Only callers that were refused for this reason.")] = "",
    limit: Annotated[int, typer.Option(help="Largest number to show.", min=1, max=1000)] = 20,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the number of callers refused since the broker's start, by reason, and the latest ones.

    Example: tidewheel refused --why "wrong signature"
    """
    found = broker_at(http).get("refused", reason=why, limit=limit)
    if as_json:
        output.print_json(found)
        return
    for reason, count in sorted(found["counts"].items()):
        output.show(f"{count:8} {reason}" + (f": {todo}" if (todo := advice(reason)) else ""))
    if not found["refused"]:
        output.say("nobody was sent away")
        return
    rows = (
        (exactly(int(one["at_ms"])), one["reason"], one["host"], one["who"], one["detail"])
        for one in found["refused"]
    )
    output.print_table(("when", "why", "from", "who", "what"), rows, prose=("why", "what"))
