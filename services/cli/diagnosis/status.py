"""`tidewheel status`: the state of a broker on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption
from services.status.judgement import Row, State, as_plain, screen, worst
from services.times.display import exactly, now_ms
from tidewheel.errors import AnswerLate, BrokerUnreachable

app = typer.Typer(add_completion=False)

AuditsOption = Annotated[
    Path, typer.Option("--audits", help="Folder of audits: the --out of tidewheel audit.")
]
AUDITS: Final = Path("audit-out")
EXIT_CODES: Final = {State.OK: 0, State.WARN: 1, State.UNKNOWN: 1, State.CRIT: 2}
WORDS: Final = {State.OK: "ok", State.WARN: "WARN", State.UNKNOWN: "?", State.CRIT: "CRIT"}
INDENT: Final = 6


@app.command()
def status(audits: AuditsOption = AUDITS, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the state of a broker on one screen: lateness, lag, transactions, dead letters, disk space, and
    replicas.

    For each line that is not OK, the command with more details is shown. Exit code 0: all is well; 1: a
    warning or an unknown value (?); 2: critical, or no broker answers. For a cluster, give the HTTP addresses
    of all nodes, separated by commas. All nodes are queried.

    Example: tidewheel status --http 127.0.0.1:8088
    """
    rows, address = rows_of(http, audits)
    if as_json:
        output.print_json({"state": worst(rows).name, "rows": [as_plain(row) for row in rows]})
    else:
        output.show(*lines(rows, address))
    raise typer.Exit(EXIT_CODES[worst(rows)])


def rows_of(http: str | None, audits: Path) -> tuple[list[Row], str]:
    """Query the broker and return the rows and its address. If no broker answers, there is a single row."""
    from services.cli.diagnosis.asking import answers_of

    try:
        found = answers_of(http, audits)
    except (BrokerUnreachable, AnswerLate) as error:
        return [unreachable(error)], http or ""
    return screen(found), found["address"]


def unreachable(error: BrokerUnreachable | AnswerLate) -> Row:
    """Return the row for a broker that does not answer."""
    return Row("serving", State.CRIT, str(error), "tidewheel doctor client HOST:PORT")


def lines(rows: Sequence[Row], address: str) -> Iterator[str]:
    """Yield the lines of the screen."""
    bad = sum(row.state is not State.OK for row in rows)
    said = "all is well" if not bad else f"{bad} of {len(rows)} lines not well"
    yield "  ".join(filter(None, ("tidewheel", address, exactly(now_ms()), said)))
    width = max(len(row.name) for row in rows)
    for row in rows:
        yield f"{WORDS[row.state]:<{INDENT}}{row.name:<{width}}  {output.cell_text(row.said)}"
        if row.state is not State.OK and row.see:
            yield f"{'':<{INDENT + width}}  --> {row.see}"
