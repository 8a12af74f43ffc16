"""The root of the command line, which lists all subcommands and imports only the subcommand that is
called.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer import core
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from services.cli.commands import COMMANDS
from services.cli.empty_values import refuse_empty_values

_UsageError: Any = typer.BadParameter.__base__
"""Base class of usage errors. Its module differs between releases of Typer."""


class LazyGroup(TyperGroup):
    """A group that lists all subcommands and imports only the subcommand that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Import the requested subcommand."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and stand_in else stand_in, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. A usage error is printed with advice."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            from services.cli.usage import explain

            explain(error)
            raise


class AsGiven:
    """Converts the value of a parameter only if necessary. Texts and default values are not converted.

    Typer creates a pydantic schema for each parameter, and the import of pydantic takes 100 ms of CPU time.
    """

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value; raise the usage error of Typer if it is invalid."""
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
        """Return whether the value is a valid integer for the parameter.

        Otherwise, Typer reports the error.
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
# this function exists in Typer 0.29; other releases use their own conversion
if build_conversion is not None:
    vars(core)["build_runtime_param"] = AsGiven


def load(name: str) -> Any:
    """Import the module of a subcommand and return its click command."""
    module = importlib.import_module(f"services.cli.{COMMANDS[name].module}")
    command = get_command(module.app)
    command.name = name
    refuse_empty_values(command)
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
