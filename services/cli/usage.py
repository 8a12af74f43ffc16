"""Advice for unknown options and unexpected arguments of a command.

Typer suggests options with a similar spelling, so that it would suggest `--help` for `--delay`. This module
suggests options with a similar meaning. The table contains option names of other brokers' commands and field
names of the HTTP interface. An option is suggested only if the command has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "--address": ("--http",),
    "--after": ("--in", "--from", "--start"),
    "--all": ("--yes",),
    "--before": ("--until", "--end"),
    "--broker": ("--http",),
    "--count": ("--limit",),
    "--data": ("--body",),
    "--delay": ("--in", "--to"),
    "--deliver-at": ("--at", "--to"),
    "--due": ("--at", "--to"),
    "--endpoint": ("--http",),
    "--force": ("--yes",),
    "--format": ("--json",),
    "--host": ("--http",),
    "--from": ("--start", "--since"),
    "--group": ("--message-group",),
    "--header": ("--property",),
    "--in": ("--to", "--by"),
    "--key": ("--timer-key",),
    "--keys": ("--key",),
    "--max": ("--limit",),
    "--message": ("--body",),
    "--message-group": ("--group",),
    "--output": ("--json",),
    "--prop": ("--property",),
    "--properties": ("--property",),
    "--server": ("--http",),
    "--since": ("--from", "--start"),
    "--tags": ("--tag",),
    "--time": ("--at", "--to"),
    "--timezone": ("--zone",),
    "--to": ("--until", "--at"),
    "--tz": ("--zone",),
    "--url": ("--http",),
    "--when": ("--at", "--to"),
    "--why": ("--reason",),
    "-g": ("--group",),
    "-k": ("--key", "--timer-key"),
    "-n": ("--limit", "--count"),
    "-o": ("--json",),
    "-t": ("--topic",),
    "-y": ("--yes",),
}
"""Maps unknown options to the options that may be meant, most likely first."""
ARGUMENTS: Final[dict[str, str]] = {"--file": "file", "--output": "file", "-o": "file", "--out": "file"}
"""Maps unknown options to positional arguments with the same meaning."""
EXTRA: Final = "Got unexpected extra argument"
TASK_VERBS: Final = {"show": "", "ls": "", "list": "", "get": "", "stop": " --stop"}
"""Words that are no ids of tasks, and the option that does what they mean."""
COUNTS: Final = {1: "one argument", 2: "two arguments"}
NO_COMMAND: Final = "No such command"
WORDS: Final = (
    ("Input should be a valid integer, unable to parse string as an integer", "it must be a whole number"),
    ("Input should be", "it must be"),
    ("Value error, ", ""),
)
"""Replaces messages of the validation library by messages without Python terms."""


def explain(error: Any) -> None:
    """Add advice to a usage error."""
    command = getattr(error.ctx, "command", None)
    if command is None:
        return
    option = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):
        if advice := _instead_of(option, command.params):
            error.message, error.possibilities = f"{error.message}. {advice}", None
    elif error.message.startswith(EXTRA):
        error.message += f". {_instead_of_extra(error)}"
    elif error.message.startswith(NO_COMMAND) and "mean" not in error.message:
        names = (name for name, one in command.commands.items() if not one.hidden)
        error.message += f" There are: {', '.join(names)}."
    for word, better in WORDS:
        error.message = error.message.replace(word, better)


def _instead_of(option: str, params: Iterable[Any]) -> str:
    options = set(_flags(params))
    arguments = {one.name for one in params if not one.opts[0].startswith("-")}
    name = ARGUMENTS.get(option, option.removeprefix("--"))
    if name in arguments:
        return f"Give the {name} without an option, as the usage shows."
    meant = next((one for one in SYNONYMS.get(option, ()) if one in options), "")
    return f"Write {meant}." if meant else ""


def _instead_of_extra(error: Any) -> str:
    """Return advice for an unexpected argument: a value without its option, or a value without quotes."""
    path, params, given = error.ctx.command_path, error.ctx.command.params, error.ctx.params
    extra = error.message.partition(" (")[2].rpartition(")")[0].partition(" ")[0]
    if given.get("as_json") and "--json-path" in set(_flags(params)):
        return f"--json takes no value. Write --json-path {extra} to search in JSON bodies."
    if given.get("task") in TASK_VERBS:
        return f"Write {path} {extra}{TASK_VERBS[given['task']]}."
    if path in ("tidewheel schedule set", "tidewheel schedule preview"):
        return "A value that has blanks is written in quotes: '0 9 * * 1-5'."
    if arguments := [one.name.strip("_") for one in params if not one.opts[0].startswith("-")]:
        count = COUNTS.get(len(arguments), f"{len(arguments)} arguments")
        return f"{path} takes {count}, {' and '.join(arguments)}. A value with blanks is quoted."
    names = ("--topic", "--timer-key", "--key", "--id", "--name", "--store")
    named = [one for one in names if one in set(_flags(params))]
    if named:
        return f"{path} takes options only, such as {' '.join(f'{one} ...' for one in named)}."
    return f"{path} takes options only."


def _flags(params: Iterable[Any]) -> Iterator[str]:
    return (flag for one in params for flag in one.opts if flag.startswith("-"))
