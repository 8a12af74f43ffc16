"""`tidewheel check`: a check of one broker value, compatible with Nagios plugins.

The output is one line on stdout, `STATE - message | figures`. The exit codes are 0 OK, 1 WARNING, 2 CRITICAL,
and 3 UNKNOWN. If the broker does not answer, the state is CRITICAL. A usage error or a missing permission is
UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from services.cli.diagnosis.status import AUDITS, AuditsOption, unreachable
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption
from services.status.judgement import (
    CHECKS,
    Figure,
    Limits,
    Row,
    State,
    Unit,
    as_plain,
    limit_text,
    parse_limit,
    probed,
)
from tidewheel.errors import AnswerLate, BrokerUnreachable, ConfigurationError, TidewheelError, UnknownChoice

app = typer.Typer(add_completion=False)

WORDS: Final = {
    State.OK: ("OK", 0),
    State.WARN: ("WARNING", 1),
    State.CRIT: ("CRITICAL", 2),
    State.UNKNOWN: ("UNKNOWN", 3),
}
ACCEPTED: Final = "; ".join(
    f"{name} {', '.join(limit_text(unit, value) for unit, value in one.limits.warn.items())} and "
    f"{', '.join(limit_text(unit, value) for unit, value in one.limits.crit.items())}"
    for name, one in CHECKS.items()
)


class Probe(TyperCommand):
    """A command that exits with UNKNOWN after a usage error, because the default exit code 2 means
    CRITICAL.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        what = next((one for one in args if one in CHECKS), "check")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if (said := getattr(error, "format_message", None)) is None:
                raise
            wrong = ConfigurationError(f"{said()} See: tidewheel check --help")
            word, code = WORDS[State.UNKNOWN]
            output.show(f"{word} - {what}: {wrong.code} {output.cell_text(str(wrong))}")
            raise typer.Exit(code) from error


@app.command(
    cls=Probe,
    help="Judge one value of a broker for a probe: one line, and an exit code.\n\n"
    "Exit code 0: OK; 1: WARNING; 2: CRITICAL, also without an answer; 3: UNKNOWN.\n\n"
    f"--warn and --crit are a span (30s), a number (100) or a part (80%). Without them: {ACCEPTED}.\n\n"
    "Example: tidewheel check lag --warn 1m --crit 10m",
)
def check(
    what: Annotated[str, typer.Argument(help=f"One of: {', '.join(CHECKS)}.")],
    warn: Annotated[str, typer.Option("--warn", help="Limit from which on the value is a warning.")] = "",
    crit: Annotated[str, typer.Option("--crit", help="Limit from which on the value is critical.")] = "",
    audits: AuditsOption = AUDITS,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check one value of a broker for a monitoring probe."""
    limits = Limits()
    try:
        limits = limits_of(what, warn, crit)
        row = asked(what, limits, http, audits)
    except (BrokerUnreachable, AnswerLate) as error:
        row = unreachable(error)
    except TidewheelError as error:
        row = Row(what, State.UNKNOWN, f"{error.code} {error}")
    word, code = WORDS[row.state]
    if as_json:
        output.print_json({"check": what, **as_plain(row)})
    else:
        output.show(line(word, what, row, limits))
    raise typer.Exit(code)


def limits_of(what: str, warn: str, crit: str) -> Limits:
    """Return the limits of a check. Raises `UnknownChoice`, `ConfigurationError`."""
    if what not in CHECKS:
        raise UnknownChoice(f"There is no check {what!r}. Give one of: {', '.join(CHECKS)}.")
    given = [limit(what, text, flag) for text, flag in ((warn, "--warn"), (crit, "--crit"))]
    try:
        return CHECKS[what].limits.with_given(*given)
    except ValueError as error:
        raise ConfigurationError(f"{error}.") from error


def limit(what: str, text: str, flag: str) -> tuple[Unit, float] | None:
    """Return a limit, or None if it is not given. Raises `ConfigurationError`."""
    if not text:
        return None
    try:
        unit, value = parse_limit(text)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error
    if unit not in CHECKS[what].units:
        units = " or ".join(one.value for one in CHECKS[what].units)
        raise ConfigurationError(f"{flag} is {text!r}, {unit.value}: {what} is judged by {units}.")
    return unit, value


def asked(what: str, limits: Limits, http: str | None, audits: Path) -> Row:
    """Query the value of a check and evaluate it.

    The check `audit` reads a folder and does not query a broker.
    """
    from services.cli.diagnosis.asking import answers_of
    from services.status.asking import newest_audit
    from services.times.display import now_ms

    if what == "audit":
        found = {"audit": newest_audit(audits), "now_ms": now_ms(), "cluster": None, "out": audits}
        return probed(what, found, limits)
    needs = frozenset((CHECKS[what].needs, *(("figures",) if what == "halves" else ())))
    return probed(what, answers_of(http, None, needs), limits)


def line(word: str, what: str, row: Row, limits: Limits) -> str:
    """Return the output line of a check. The character `|` occurs only before the figures."""
    said = output.cell_text(row.said).replace("|", "/")
    more = f"; see: {row.see}" if row.state is not State.OK and row.see else ""
    figures = " ".join(figure_text(one, limits) for one in row.figures)
    return f"{word} - {what}: {said}{more}" + (f" | {figures}" if figures else "")


def figure_text(figure: Figure, limits: Limits) -> str:
    """Return a figure with its unit and limits, such as name=seconds"s;warn;crit."""
    scale, unit = {Unit.SPAN: (0.001, "s"), Unit.COUNT: (1, ""), Unit.PART: (100, "%")}[figure.unit]
    parts = [f"{figure.value * scale:.6g}{unit}", *bounds(figure.unit, limits, scale)]
    return f"{figure.name}={';'.join(parts)}"


def bounds(unit: Unit, limits: Limits, scale: float) -> Iterator[str]:
    """Yield the limits of a unit, or empty strings for missing limits."""
    for side in (limits.warn, limits.crit):
        yield f"{side[unit] * scale:.6g}" if unit in side else ""
