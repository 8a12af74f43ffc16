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


def parameters() -> Iterator[tuple[str, ...]]:
    """Yield the words of each option and each argument of every command, without flags and numbers."""
    for name in COMMANDS:
        for path, command in commands(load(name), (name,)):
            for one in command.params:
                is_flag = getattr(one, "is_flag", False) or one.is_eager
                if not is_flag and not MAY_BE_EMPTY.intersection(one.opts):
                    yield (*path, one.opts[0])


def arguments(path: tuple[str, ...], flag: str) -> list[str]:
    """Return an empty value for a parameter, and a value for each other one that the command requires."""
    command = load(path[0])
    for name in path[1:]:
        command = command.commands[name]
    words = []
    for one in command.params:
        if flag in one.opts:
            words += [flag, ""] if one.param_type_name == "option" else [""]
        elif one.required:
            words += [one.opts[0], "1"] if one.param_type_name == "option" else ["1"]
    return words


@pytest.mark.parametrize("words", list(parameters()), ids=" ".join)
def test_an_empty_value_is_refused(words: tuple[str, ...]) -> None:
    *path, flag = words
    with pytest.raises(ConfigurationError, match=r"is empty: is a variable of the shell unset\? ") as refused:
        root().main([*path, *arguments(tuple(path), flag)], standalone_mode=False)
    assert flag.upper() in str(refused.value).upper() or not flag.startswith("-")


def test_parameters_that_change_much_or_are_paths_are_among_them() -> None:
    named = set(parameters())
    for path in (
        "dlq purge --topic",
        "group reset --topic",
        "topic move --key",
        "dev --store",
        "topic purge name",
    ):
        assert tuple(path.split()) in named
