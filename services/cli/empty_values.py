"""Empty values of options, which are refused before a command runs.

An empty value is usually an unset variable of a shell, as in `--topic "$TOPIC"`. Without this check, the
option would count as left out, and a purge or a reset would affect everything. Options whose empty value is
meant are listed in `MAY_BE_EMPTY`.
"""

from __future__ import annotations

from typing import Any, Final

from tidewheel.errors import ConfigurationError

MAY_BE_EMPTY: Final = frozenset({"--body"})
"""Options whose empty value is a value: a message may have an empty body."""


def refuse_empty_values(command: Any) -> None:
    """Let all options of a click command and of its subcommands refuse empty values."""
    for subcommand in getattr(command, "commands", {}).values():
        refuse_empty_values(subcommand)
    for option in command.params:
        is_refusing = option.param_type_name == "option" and not MAY_BE_EMPTY.intersection(option.opts)
        if is_refusing and option.callback is None:
            option.callback = refuse_empty


def refuse_empty(context: Any, option: Any, value: Any) -> Any:
    """Return the value of an option. Raise `ConfigurationError` if it is given and empty."""
    source = context.get_parameter_source(option.name or "")
    is_given = source is not None and source.name == "COMMANDLINE"
    values = value if isinstance(value, list | tuple) else [value]
    if is_given and "" in values:
        raise ConfigurationError(
            f"{option.opts[0]} is empty: is a variable of the shell unset? Give a value, or leave the "
            "option out."
        )
    return value
