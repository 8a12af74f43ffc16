"""Empty values of options and arguments, which are refused before a command runs.

An empty value is usually an unset variable of a shell, as in `--topic "$TOPIC"`. Without this check, the
option would count as left out, and a purge or a reset would affect everything; an empty path would be the
current folder. Parameters whose empty value is meant are listed in `MAY_BE_EMPTY`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tidewheel.errors import ConfigurationError

MAY_BE_EMPTY: Final = frozenset({"--body", "body"})
"""Parameters whose empty value has an error of its own: a body without a byte."""


def refuse_empty_values(command: Any) -> None:
    """Let all options and arguments of a click command and of its subcommands refuse empty values."""
    for subcommand in getattr(command, "commands", {}).values():
        refuse_empty_values(subcommand)
    for parameter in command.params:
        if not MAY_BE_EMPTY.intersection(parameter.opts):
            parameter.consume_value = partial(_consume, parameter, parameter.consume_value)


def _consume(parameter: Any, consume_value: Any, context: Any, given: Any) -> tuple[Any, Any]:
    """Return the text of a parameter before its conversion, and the source of the text.

    Raise `ConfigurationError` if the parameter is given on the command line and is empty.
    """
    value, source = consume_value(context, given)
    values = value if isinstance(value, list | tuple) else [value]
    if "" in values and source.name == "COMMANDLINE":
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
        left_out = "" if parameter.required else ", or leave it out"
        raise ConfigurationError(
            f"{name} is empty: is a variable of the shell unset? Give a value{left_out}."
        )
    return value, source
