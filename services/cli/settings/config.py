"""`tidewheel config`: the current settings with their origins, and the list of all settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from services.cli.settings.setting_options import ConfigOption, given, takes
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.settings.config import Address, HttpAddress, ServeSettings, UserSettings, all_settings, look_up
from services.settings.setting import settings_of

if TYPE_CHECKING:
    from services.settings.setting import Setting

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The settings in force, where each is from, and all there are.\n\n"
    "A flag goes before the environment, that before the file, that before the default.\n\n"
    "Example: tidewheel config show",
)


@app.command("show")
@takes(ServeSettings, UserSettings)
def show(
    context: typer.Context, as_json: JsonOption = False, config: ConfigOption = None, **flags: Any
) -> None:
    """Show every setting with its value and origin. The options of tidewheel serve are accepted.

    No broker is started. Exit code 2: a value, or a name in the file, is invalid.

    Example: tidewheel config show --config ./tidewheel.toml --json
    """
    found = look_up(all_settings(), given(context, flags), config)
    if as_json:
        values = {
            name: {"value": shown(name, bare(one.value)), "origin": one.origin} for name, one in found.items()
        }
        output.print_json(values)
        return
    rows = [(name, str(shown(name, text_of(one.value))), one.origin) for name, one in found.items()]
    output.print_table(("setting", "value", "from"), rows)


def shown(name: str, value: Any) -> Any:
    """Return the printable value of a setting. The password in a cluster URL is removed."""
    from sharedlog.engines import without_password

    return without_password(value) if name == "cluster" and isinstance(value, str) and value else value


@app.command("example")
def show_example() -> None:
    """Print a settings file with the meaning and default of every setting. All settings are commented out.

    Example: tidewheel config example > tidewheel.toml
    """
    print(example(), end="")


@app.command("docs")
def show_docs() -> None:
    """Print the table of all settings in Markdown, as in docs/configuration.md.

    Example: tidewheel config docs
    """
    print(table(), end="")


def example() -> str:
    """Return a documented TOML file in which every setting is commented out."""
    lines = ["# Settings of Tidewheel. A flag or a TIDEWHEEL_* variable goes before what is set here."]
    heading = ""
    for setting in all_settings().values():
        if setting.about.heading != heading:
            heading = setting.about.heading
            lines += ["", f"## {heading}"]
        lines += ["", f"# {setting.about.meaning}{bounds(setting)}", f"#{setting.name} = {as_toml(setting)}"]
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return the table of all settings in Markdown."""
    lines = ["| key | flag, variable | default | meaning |", "|---|---|---|---|"]
    for setting in all_settings().values():
        names = f"`{setting.flag}`, `{setting.variable}`" if is_flag(setting) else f"`{setting.variable}`"
        default = f"`{text_of(setting.default)}`" if setting.default not in (None, "") else ""
        lines.append(f"| `{setting.name}` | {names} | {default} | {setting.about.meaning}{bounds(setting)} |")
    return "\n".join(lines) + "\n"


def is_flag(setting: Setting) -> bool:
    """Return whether a setting is an option of `tidewheel serve`."""
    return setting.name in settings_of(ServeSettings)


def bounds(setting: Setting) -> str:
    """Return the choices or bounds of a setting as a sentence."""
    about = setting.about
    if setting.choices:
        return f" One of: {', '.join(setting.choices)}."
    unit = " characters" if setting.kind is str else ""
    said = [
        f"more than {about.above:,g}" if about.above is not None else "",
        f"at least {about.least:,.0f}" if about.least else "",
        f"at most {about.most:,.0f}" if about.most is not None else "",
    ]
    words = ", ".join(filter(None, said))
    return f" {words[0].upper()}{words[1:]}{unit}." if words else ""


def as_toml(setting: Setting) -> str:
    """Return the default of a setting in TOML, or an example value if there is no default."""
    if setting.default is not None:
        return json.dumps(bare(setting.default))
    if setting.choices:
        return json.dumps(setting.choices[-1])
    return {int: "1", float: "1.0", Address: '"host:port"'}.get(setting.kind, '"file"')


def bare(value: Any) -> Any:
    """Return a value as a JSON value."""
    return str(value) if isinstance(value, Path | Address | HttpAddress) else value


def text_of(value: Any) -> str:
    """Return a value as text, or an empty string for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
