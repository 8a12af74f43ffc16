"""`tidewheel journal`: actions of operators, newest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.status.callers import user_of
from services.times.display import exactly

app = typer.Typer(add_completion=False)


@app.command()
def journal(
    about: Annotated[
        str, typer.Option(help="Only acts that contain this text: a topic, a user, an operation.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Largest number of acts to show.")] = 20,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the actions of operators, newest first, with user, reason and result.

    Example: tidewheel journal --about orders
    """
    api, entries, before = broker_at(http), list[dict[str, Any]](), None
    while len(entries) < limit:
        place: dict[str, str] = {} if before is None else {"before": before}
        page = api.get("journal", limit=limit - len(entries), about=about, **place)
        entries += page["entries"]
        before = page["before"]
        if before is None:
            break
    if as_json:
        output.print_json(entries)
        return
    if not entries and about:
        output.say(f"no act contains {about!r}")
        return
    if not entries:
        output.say("no acts yet; one is noted by:  tidewheel topic alter orders --queues 8")
        return
    columns = ("at", "user", "from", "verb", "about", "verdict", "why")
    output.print_table(columns, map(row, entries), prose=("about", "why"))


def row(entry: dict[str, Any]) -> tuple[str, ...]:
    """Return an action as a table row. For a refusal, the error message replaces the reason."""
    caller = " ".join(filter(None, (entry["program"].partition("/")[0], entry["host"])))
    why = entry["reason"] or entry["detail"]
    at = exactly(int(entry["store_ms"]))
    return at, user_of(entry), caller, entry["verb"], entry["about"], entry["verdict"], why
