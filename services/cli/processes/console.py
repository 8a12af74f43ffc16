"""`tidewheel console`: web pages for a broker or a cluster, served by a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.terminal import output
from services.settings.config import parse_address

app = typer.Typer(add_completion=False)

PORT_USUAL = 8089


@app.command()
def console(
    http: Annotated[
        str | None,
        typer.Option("--http", "-e", help="[https://]HOST:PORT of the broker, or of nodes, with commas."),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address on loopback; port 0 selects a free port."
        ),
    ] = f"127.0.0.1:{PORT_USUAL}",
    audits: Annotated[
        Path, typer.Option("--audits", help="Folder of audits to show, as in: audit run --out.")
    ] = Path("audit-out"),
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show only: refuse every change, whatever the token may do.")
    ] = False,
    child: Annotated[
        bool,
        typer.Option("--child", hidden=True, help="Read one-time keys from stdin, and end when stdin ends."),
    ] = False,
) -> None:
    """Show a broker in a browser, until Ctrl-C. A link that signs in once is printed.

    The session of this link calls the broker with the token in the file TIDEWHEEL_HTTP_TOKEN, if it is set.
    Other users sign in with their own tokens: tidewheel auth token add USER

    Example: tidewheel console --http 127.0.0.1:8088
    """
    from services.console.serving import Plan, serve
    from services.http.calls import client_settings
    from services.settings.config import secret_in

    settings = client_settings(http)
    try:
        address = parse_address(listen, PORT_USUAL)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from error
    token = secret_in(settings.http_token, "http_token")
    serve(Plan(http, audits, read_only, child), address, token, announce_to_parent if child else announce)


def announce(url: str, link: str) -> None:
    """Print the address of the console."""
    output.offer(f"console {url}   Ctrl-C stops it\nopen within ten minutes, once:  {link}")


def announce_to_parent(url: str, link: str) -> None:
    """Print the address of the console on the first line of stdout. The parent process creates the links."""
    output.offer(url)
