"""Command-line options generated from the declared settings."""

from __future__ import annotations

from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.settings.config import Address, HttpAddress
from services.settings.setting import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.settings.setting import Setting

METAVARS: dict[Any, str] = {
    Address: "HOST:PORT",
    HttpAddress: "HOST:PORT",
    Path: "PATH",
    int: "NUMBER",
    float: "NUMBER",
    str: "TEXT",
}

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of settings; default: TIDEWHEEL_CONFIG, or tidewheel.toml in this folder.",
    ),
]


def takes(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an option for every setting of `kinds` to a command `(context, config,
    **flags)`.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = Signature.from_callable(command, eval_str=True).parameters.values()
        parameters = [one for one in own if one.kind is not Parameter.VAR_KEYWORD]
        parameters += [option(setting) for setting in settings_of(*kinds).values()]
        # Read by `inspect.signature`, and thus by Typer (PEP 362); not declared for functions in typeshed.
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return with_options


def option(setting: Setting) -> Parameter:
    """Return the option of a setting. `Setting.parse` parses its text, as for all other sources."""
    about, has_default = setting.about, setting.default not in (None, "")
    shared: dict[str, Any] = {"help": about.meaning, "rich_help_panel": about.heading or None}
    if setting.kind is bool:
        both = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return keyword(setting.name, bool, typer.Option(both, **shared), setting.default)
    metavar = "|".join(setting.choices) or METAVARS[setting.kind]
    info = typer.Option(setting.flag, metavar=metavar, show_default=has_default, **shared)
    return keyword(setting.name, str, info, str(setting.default) if has_default else None)


def keyword(name: str, kind: Any, info: Any, default: Any) -> Parameter:
    """Return a keyword parameter as Typer reads it from a signature."""
    annotation: Any = Annotated[kind, info] if default is not None else Annotated[kind | None, info]
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def given(context: typer.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line.

    The defaults of other options are only for --help.
    """
    return {name: value for name, value in flags.items() if was_typed(context, name)}


def was_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
