"""The `tidewheel` command. Each subcommand is imported only when it is used.

Rules for a subcommand:
1. A subcommand is one line in `commands.py` and one module, `<room>/<name>.py`, that contains `app =
   typer.Typer(add_completion=False)`. It has one `@app.command()` for `tidewheel <name>`, or several commands
   (or an `@app.callback()`) for `tidewheel <name> <verb>`.
2. Its help ends with an example. It has the option `--json` if it prints data. Data is written to stdout, and
   other messages to stderr (`services.cli.terminal.output`).
3. A subcommand does not catch `TidewheelError`. `main` prints the code and the message, and exits with the
   error's `exit_code`. Other exit codes are set by `raise typer.Exit(code)`. 0 success, 1 a difference was
   found, 2 wrong usage, 3 unreachable or cannot start, 4 not found or refused by state, 5 damage, 130
   interrupted.

Imports are lazy because Spark, gRPC and SQLAlchemy each take longer to import than `tidewheel --help` may
take in total. The same applies to Typer, which the list of commands does not use, and to pydantic, which
Typer uses to convert values (`services/cli/root.py`). `benchmarks/cli.py` measures these times.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from commitlog.assertions import require_assertions
from services.cli.commands import COMMANDS
from services.process.streams import standard_streams
from tidewheel.errors import TidewheelError
from tidewheel.extras import extra_of, library_of, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_NOT_READ = 141
"""Exit code that a shell reports for a process ended by SIGPIPE."""
HELP: Final[tuple[list[str], ...]] = ([], ["--help"], ["-h"])
VARIABLE_PREFIX: Final = "TIDEWHEEL_"
LOGGING: Final = (["serve"], ["dev"])
"""Commands that report ignored variables in their log."""
VERSION: Final[tuple[list[str], ...]] = (["--version"], ["-V"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. A `TidewheelError` is printed as one line and sets the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with standard_streams():
        try:
            print_and_flush(given)
            sys.exit(0)
        except TidewheelError as error:
            complain(f"{error.code} {error}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # the reader of the pipe, such as `head`, has exited
            sys.exit(EXIT_NOT_READ)


def print_and_flush(given: list[str]) -> None:
    """Run the command line and flush stdout, so that write errors are raised here."""
    try:
        require_assertions()
        if given in HELP:
            print(help_text())
        elif given in VERSION:
            print(f"tidewheel {own_version()}")
        else:
            run(given)
    finally:
        sys.stdout.flush()


def own_version() -> str:
    """Return the version of this installation."""
    from importlib.metadata import version

    return version("tidewheel")


def help_text() -> str:
    """Return the list of commands. It is formatted without Typer, whose import takes 70 ms."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {entry.summary}" for name, entry in COMMANDS.items())
    return f"""Usage: tidewheel COMMAND ...

Messages that arrive later, and messages that agree with a database.

Commands:
{commands}

Each has its own --help, with an example. Begin with:  tidewheel serve --store ./store
Completion in your shell:  tidewheel --install-completion. Which version:  tidewheel --version"""


def run(arguments: list[str]) -> None:
    """Run the command line. Raises `LibraryMissing` if a library of an extra is not installed."""
    from services.cli.root import root

    if arguments[:1] not in LOGGING and any(name.startswith(VARIABLE_PREFIX) for name in os.environ):
        warn_of_variables()

    try:
        root()(args=arguments, prog_name="tidewheel")
    except ModuleNotFoundError as error:
        library = library_of(error)
        named = next((COMMANDS[word] for word in arguments if word in COMMANDS), None)
        extra = extra_of(library, named.extra if named else "")
        if not extra:
            raise
        raise missing(extra, library) from error


def complain(sentence: str) -> None:
    """Print an error message to stderr."""
    from services.cli.terminal.output import say

    say(sentence)


def warn_of_variables() -> None:
    """Print a warning for each environment variable that looks like a setting but is unknown."""
    from services.settings.config import ignored_variables
    from services.settings.errors import UnknownSetting

    for sentence in ignored_variables():
        complain(f"{UnknownSetting.code} {sentence} It is ignored.")


if __name__ == "__main__":
    main()
