"""`tidewheel top`: `tidewheel status`, refreshed continuously.

On a terminal, the alternate screen is used, and the last status is printed at exit. Otherwise, the status is
printed once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from services.cli.diagnosis.status import AUDITS, EXIT_CODES, AuditsOption, lines, rows_of
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption
from services.cli.terminal.durations import parse_ms
from services.status.judgement import worst
from tidewheel.errors import ConfigurationError
from tidewheel.printable import one_line

app = typer.Typer(add_completion=False)

EVERY_MS_MIN: Final = 200
ENTER, LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\033[H", "\033[K", "\033[J"


@app.command()
def top(
    every: Annotated[str, typer.Option("--every", help="Interval between queries.")] = "2s",
    audits: AuditsOption = AUDITS,
    http: HttpOption = None,
) -> None:
    """Show the output of tidewheel status, refreshed in place until Ctrl-C.

    If stdout is not a terminal, the status is printed once, and the exit code is that of tidewheel status.

    Example: tidewheel top --every 5s --http 127.0.0.1:8088
    """
    every_ms = parse_ms(every, "--every")
    if every_ms < EVERY_MS_MIN:
        raise ConfigurationError(f"--every is {every}: each refresh loads the broker; give 200ms or more.")
    if not sys.stdout.isatty():
        rows, address = rows_of(http, audits)
        output.show(*lines(rows, address))
        output.say("stdout is no terminal: printed once")
        raise typer.Exit(EXIT_CODES[worst(rows)])
    shown: list[str] = []
    try:
        with screen_of_its_own():
            while True:
                shown = list(lines(*rows_of(http, audits)))
                draw([*shown, "", f"every {every}; Ctrl-C ends"])
                time.sleep(every_ms / 1000)
    except KeyboardInterrupt:
        output.show(*shown)


@contextmanager
def screen_of_its_own() -> Iterator[None]:
    """Switch to the terminal's alternate screen and hide the cursor. Both are restored at exit."""
    print(ENTER, end="", flush=True)
    try:
        yield
    finally:
        print(LEAVE, end="", flush=True)


def draw(shown: list[str]) -> None:
    """Overwrite the previous lines without clearing the screen."""
    text = "".join(f"{one_line(line)}{REST_OF_LINE}\r\n" for line in shown)
    print(f"{HOME}{text}{REST_OF_SCREEN}", end="", flush=True)
