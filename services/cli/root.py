"""The command line's root: it knows every sub-command's summary and imports only the one that is called."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer import core
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from services.cli.commands import COMMANDS

_UsageError: Any = typer.BadParameter.__base__
"""The mistakes in how a command is used; each release of Typer has it in another place."""


class LazyGroup(TyperGroup):
    """A group that knows every sub-command's summary and imports only the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Import the sub-command that was asked for."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and stand_in else stand_in, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command; a mistake in its usage says what to write instead."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            from services.cli.usage import explain

            explain(error)
            raise


class AsGiven:
    """Convert a parameter's value where it must be: a text that is to be a text, or a default, is as it is.

    Typer makes a pydantic schema for every parameter, and imports pydantic for that: 100 ms of processor
    time.
    """

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as its command takes it; raise what Typer does where it cannot."""
        is_one = not param.multiple and param.nargs == 1
        if value is None:
            return None if is_one else ()
        if is_one and self._descriptor.parameter_info.parser is None:
            if type(value) is self._descriptor.annotation:
                return value
            if self._is_number(value):
                return int(value)
        return build_conversion(self._descriptor).coerce(value, param=param, ctx=ctx)

    def _is_number(self, value: Any) -> bool:
        """Return whether it is the text of a whole number that the parameter takes.

        Typer says why it is not.
        """
        if self._descriptor.annotation is not int or not isinstance(value, str) or not value.isascii():
            return False
        info = self._descriptor.parameter_info
        return (
            value.isdecimal()
            and (info.min or 0) <= int(value)
            and (info.max is None or int(value) <= info.max)
        )


build_conversion: Any = getattr(core, "build_runtime_param", None)
if build_conversion is not None:  # of Typer 0.29; another release converts as it likes
    vars(core)["build_runtime_param"] = AsGiven


def load(name: str) -> Any:
    """Import the module of a sub-command and return its click command."""
    module = importlib.import_module(f"services.cli.{COMMANDS[name].module}")
    command = get_command(module.app)
    command.name = name
    return command


app = typer.Typer(
    name="tidewheel",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def tidewheel() -> None:
    """Messages that arrive later, and messages that agree with a database.

    Example: tidewheel serve --store ./store
    """


def root() -> Any:
    """Return the click command of the whole command line."""
    return get_command(app)
