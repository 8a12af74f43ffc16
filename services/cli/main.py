"""The `tidewheel` command: a table of sub-commands, each imported only when it is used.

The rule for a sub-command:
1. It is one line in `commands.py` and one module in a room, `<room>/<name>.py`, that holds
   `app = typer.Typer(add_completion=False)`: one `@app.command()` for `tidewheel <name>`, several (or an
   `@app.callback()`) for `tidewheel <name> <verb>`.
2. Its help ends with an example; it takes `--json` where it prints data. Data goes to stdout, talk to stderr
   (`services.cli.terminal.output` has both).
3. It raises `TidewheelError`s and lets them go: `main` prints "TW-nnn what, where, what next" and exits with
   the error's `exit_code`. Other exit codes: `raise typer.Exit(code)`. 0 done, 1 a difference was found,
   2 wrong usage, 3 cannot reach or start, 4 not found or refused by state, 5 damage, 130 interrupted.

Importing is lazy because Spark, gRPC and SQLAlchemy each cost more than `tidewheel --help` may take; so do
the library of the command line, which the list of commands does without, and pydantic, by which that library
converts values (`services/cli/root.py`). `benchmarks/cli.py` measures both.
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
"""What a shell says of a process that ended by SIGPIPE."""
HELP: Final[tuple[list[str], ...]] = ([], ["--help"], ["-h"])
VARIABLE_PREFIX: Final = "TIDEWHEEL_"
LOGGING: Final = (["serve"], ["dev"])
"""Commands whose log says it."""
VERSION: Final[tuple[list[str], ...]] = (["--version"], ["-V"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors that Tidewheel raises on purpose become one line and an exit code."""
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
        except BrokenPipeError:  # whoever reads, `head` perhaps, has read enough
            sys.exit(EXIT_NOT_READ)


def print_and_flush(given: list[str]) -> None:
    """Do what the command line says; its result is written when this ends, or it raises what kept it."""
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
    """Return the list of commands, drawn without the library of the command line: its import takes 70 ms."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {entry.summary}" for name, entry in COMMANDS.items())
    return f"""Usage: tidewheel COMMAND ...

Messages that arrive later, and messages that agree with a database.

Commands:
{commands}

Each has its own --help, with an example. Begin with:  tidewheel serve --store ./store
Completion in your shell:  tidewheel --install-completion. Which version:  tidewheel --version"""


def run(arguments: list[str]) -> None:
    """Run the command line; raise `LibraryMissing` where a library of an extra is not installed."""
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
    """Say what is wrong, as commands say everything."""
    from services.cli.terminal.output import say

    say(sentence)


def warn_of_variables() -> None:
    """Say which variables look like settings and are none."""
    from services.settings.config import ignored_variables
    from services.settings.errors import UnknownSetting

    for sentence in ignored_variables():
        complain(f"{UnknownSetting.code} {sentence} It is ignored.")


if __name__ == "__main__":
    main()
