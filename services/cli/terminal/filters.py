"""Options that select items, whose values must not be empty.

An empty value is usually an unset variable of a shell, as in `--timer-key "$KEY"`. Without this check, the
filter would be left out, and a bulk change would affect all items.
"""

from __future__ import annotations

from typing import Any

import typer

from tidewheel.errors import ConfigurationError


def filter_option(help_text: str, *flags: str, **settings: Any) -> Any:
    """Return an option that selects items, with further settings of `typer.Option`."""
    return typer.Option(*flags, help=help_text, callback=refuse_empty, **settings)


def refuse_empty(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return the value of an option. Raise `ConfigurationError` if it is given and empty."""
    source = context.get_parameter_source(parameter.name or "")
    is_given = source is not None and source.name == "COMMANDLINE"
    values = value if isinstance(value, list | tuple) else [value]
    if is_given and "" in values:
        raise ConfigurationError(
            f"{parameter.opts[0]} is empty: is a variable of the shell unset? Give a value, or leave the "
            "option out."
        )
    return value
