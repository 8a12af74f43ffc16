"""Common options, exit codes and progress output of the `tidewheel audit` commands."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.times import parse_past_ms
from services.times.display import now_ms, wall
from tidewheel.errors import ConfigurationError, TidewheelError
from tidewheel.extras import needing

if TYPE_CHECKING:
    from rich.console import Console

    from spark_jobs.options import AuditOptions

FINDINGS = 1
NOT_DONE = 2
NOT_READ = 141
"""Exit code that a shell reports for a process ended by SIGPIPE."""

StoreOption = Annotated[Path, typer.Option(help="The store of the broker, which may be running.")]
OrdersOption = Annotated[str, typer.Option(help="The order database, as an SQLAlchemy URL.")]
CartsOption = Annotated[
    str | None,
    typer.Option(
        help="The carts: redis://..., an SQLAlchemy URL, or parquet:FOLDER of an earlier export; without it, "
        "carts are not checked, and order lines are not read."
    ),
]
PushesOption = Annotated[
    str | None,
    typer.Option(help="The push database, as an SQLAlchemy URL; without it, pushes are not checked."),
]
MappingOption = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with the names of your tables, columns, topics and groups; default: the shop's."
    ),
]
OutOption = Annotated[Path, typer.Option(help="The folder for audit runs; each run adds files to it.")]
RunOption = Annotated[str, typer.Option("--run", help="The id of the run; default: the newest run.")]


def span_option(help_text: str, *flags: str) -> Any:
    """Return an option for the audited time range."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Time range")


def limit_option(help_text: str) -> Any:
    """Return an option for a limit of the findings."""
    return typer.Option(help=help_text, rich_help_panel="Limits of findings")


def limits(out: Path, spans: dict[str, str], moments: dict[str, str], has_plan: bool) -> AuditOptions:
    """Return the options of a run. `ConfigurationError` names an invalid option."""
    from spark_jobs.options import AuditOptions, new_run_id

    given: dict[str, Any] = {field(name): parse_ms(text, f"--{name}") for name, text in spans.items()}
    if "window" in spans:
        given["window_ms"] = width_ms(spans["window"])
    given |= {field(name): parse_past_ms(text, f"--{name}") for name, text in moments.items() if text}
    _refuse_no_time(given.get("from_ms"), given.get("to_ms"))
    return AuditOptions(new_run_id(out), has_plan=has_plan, **given)


def width_ms(window: str) -> int:
    """Return the width of windows in milliseconds. Raises `ConfigurationError`."""
    width = parse_ms(window, "--window")
    if not width:
        raise ConfigurationError(f"--window is {window!r}: a window has a width, such as 5m.")
    return width


def refuse_seal_of_part(has_seal: bool, from_: str, to: str) -> None:
    """Refuse to seal by a run over only some of the orders. Raises `ConfigurationError`."""
    if has_seal and (from_ or to):
        raise ConfigurationError(
            "--seal needs all orders, and --from and --to leave some out. Leave out the one or the others."
        )


def _refuse_no_time(from_ms: int | None, to_ms: int | None) -> None:
    """Refuse a time range that contains no orders, because an audit without orders always balances."""
    if from_ms is None:
        return
    if from_ms > now_ms():
        raise ConfigurationError(f"--from is {wall(from_ms)}, which is still to come.")
    if to_ms is not None and from_ms >= to_ms:
        raise ConfigurationError(f"--from is {wall(from_ms)}, which is not before --to, {wall(to_ms)}.")


def field(name: str) -> str:
    """Return the field name of an option in `AuditOptions`."""
    return f"{name.replace('-', '_')}_ms"


@contextmanager
def answering() -> Iterator[None]:
    """Exit with code 2 after any error, so that the error cannot be mistaken for a finding."""
    try:
        with needing("audit"):
            yield
            sys.stdout.flush()
    except TidewheelError as error:
        output.say(f"{error.code} {error}")
        raise typer.Exit(NOT_DONE) from error
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError as error:  # the reader of the pipe, such as `head`, has exited
        raise typer.Exit(NOT_READ) from error
    # an internal error must not look like a finding, whose exit code is Python's 1
    except Exception as error:
        traceback.print_exc()
        raise typer.Exit(NOT_DONE) from error


@contextmanager
def stepping() -> Iterator[Callable[[str], None]]:
    """Report the progress of a long command: a running timer on a terminal, or one line per step
    elsewhere.
    """
    if not sys.stderr.isatty():
        yield output.say
        return
    from rich.console import Console

    steps = Steps(Console(stderr=True))
    try:
        yield steps.begin
    finally:
        steps.end()


class Steps:
    """Progress on a terminal: a spinner for the current step, and the duration of completed steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._step, self._begun_s = "", 0.0

    def begin(self, step: str) -> None:
        """Complete the previous step and begin a new step."""
        self.end()
        self._step, self._begun_s = step, time.monotonic()
        self._status.update(step)
        self._status.start()

    def end(self) -> None:
        """Complete the last step."""
        if self._step:
            self._status.stop()
            taken = f"{time.monotonic() - self._begun_s:.1f} s"
            self._console.print(f"{self._step}  {taken}", markup=False, highlight=False, style="dim")
            self._step = ""
