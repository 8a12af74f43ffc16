"""`ls` is the name of every list; `list`, which many type first, is understood as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

Command = TypeVar("Command", bound="Callable[..., None]")


def lists(app: typer.Typer) -> Callable[[Command], Command]:
    """Make a function the `ls` of a group of commands."""

    def with_both_names(command: Command) -> Command:
        app.command("ls")(command)
        app.command("list", hidden=True)(command)
        return command

    return with_both_names
