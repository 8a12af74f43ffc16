"""An empty value, such as an unset variable of a shell, selects nothing by accident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from services.cli.commands import COMMANDS
from services.cli.empty_values import MAY_BE_EMPTY
from services.cli.root import load, root
from tidewheel.errors import ConfigurationError


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands without subcommands, each with its words."""
    if not (below := getattr(command, "commands", {})):
        yield path, command
    for name, one in below.items():
        yield from commands(one, (*path, name))


def options() -> Iterator[tuple[str, ...]]:
    """Yield the words of every option of every command that takes a text."""
    for name in COMMANDS:
        for path, command in commands(load(name), (name,)):
            for one in command.params:
                is_option = one.param_type_name == "option" and not one.is_flag and not one.is_eager
                annotation = getattr(getattr(one, "type_descriptor", None), "annotation", str)
                if is_option and annotation is str and not MAY_BE_EMPTY.intersection(one.opts):
                    yield (*path, one.opts[0])


def required(path: tuple[str, ...], flag: str) -> list[str]:
    """Return values for all that a command requires besides the option."""
    command = load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    words = []
    for one in command.params:
        if one.required and flag not in one.opts:
            words += [one.opts[0], "1"] if one.param_type_name == "option" else ["1"]
    return words


@pytest.mark.parametrize("words", list(options()), ids=" ".join)
def test_an_empty_value_of_an_option_is_refused(words: tuple[str, ...]) -> None:
    *path, flag = words
    with pytest.raises(ConfigurationError, match=f"{flag} is empty: is a variable of the shell unset"):
        root().main([*path, *required(tuple(path), flag), flag, ""], standalone_mode=False)


def test_options_that_delete_or_move_many_are_among_them() -> None:
    named = set(options())
    for path in ("dlq purge --topic", "dlq redrive --tag", "group reset --topic", "topic move --key"):
        assert tuple(path.split()) in named
