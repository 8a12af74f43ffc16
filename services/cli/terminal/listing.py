"""Registration of list commands under the names `ls` and `list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

Command = TypeVar("Command", bound="Callable[..., None]")


def lists(app: typer.Typer) -> Callable[[Command], Command]:
    """Return a decorator that registers a function as the list command of a command group."""

    def with_both_names(command: Command) -> Command:
        app.command("ls")(command)
        app.command("list", hidden=True)(command)
        return command

    return with_both_names
