"""`tidewheel version`: versions to include in a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from services.cli.terminal import output

app = typer.Typer(add_completion=False)

SHOWN = (
    *("tidewheel", "protobuf", "uvloop"),  # libraries that a broker uses to serve requests
    *("grpcio", "sqlalchemy", "redis", "pyspark", "rocketmq-python-client"),
)


@app.command()
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the versions of Tidewheel, Python and the libraries in use.

    Example: tidewheel version --json
    """
    versions = {"python": platform.python_version(), **{name: installed(name) for name in SHOWN}}
    if as_json:
        output.print_json(versions)
    else:
        output.print_table(("what", "version"), versions.items())


def installed(distribution: str) -> str:
    """Return the version of an installed distribution, or "not installed"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
