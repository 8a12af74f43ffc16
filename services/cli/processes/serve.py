"""`tidewheel serve`: run a broker in this terminal."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import typer

from services.cli.settings.setting_options import ConfigOption, given, takes
from services.cli.terminal import output
from services.settings.config import ServeSettings, load
from tidewheel.client.address import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

    from services.server.parts import Ready

app = typer.Typer(add_completion=False)

HTTP_PORT_USUAL = 8088
VIRTUAL_CLOCK = "VIRTUAL, for tests: POST /api/clock/advance lets time pass"


@app.command()
@takes(ServeSettings)
def serve(context: typer.Context, config: ConfigOption = None, **flags: Any) -> None:
    """Run a broker until Ctrl-C, SIGTERM or SIGHUP.

    Every option can also be set in the environment (--listen is TIDEWHEEL_LISTEN) or in a file (listen =
    "..."). Options take precedence over the environment, and the environment over the file. `tidewheel config
    show` prints the current settings. An acknowledged message is on this disk; with --cluster, it is in the
    shared log of the nodes.

    Example: tidewheel serve --store ./store --listen 127.0.0.1:8081 --http 127.0.0.1:8088
    """
    from services.server.run import serve as run

    settings = load(ServeSettings, config, **given(context, flags))
    run(settings, lambda ready: announce(settings, ready))


def announce(settings: ServeSettings, ready: Ready) -> None:
    """Print the addresses of the broker and example commands to stdout.

    The log on stderr reports them separately.
    """
    if settings.banner:
        output.offer(banner(settings, ready))


def banner(settings: ServeSettings, ready: Ready) -> str:
    """Return the startup message of a broker."""
    there = http_option(ready)
    opened = "new" if ready.boot == 0 else f"start {ready.boot + 1}"
    made = "made when first used" if settings.auto_create else "made by: tidewheel topic create NAME"
    spoken = "TLS only" if settings.is_tls_only else "plaintext and TLS"
    clock = f"  clock   {VIRTUAL_CLOCK}\n" if settings.clock == "virtual" else ""
    return (
        f"tidewheel {version('tidewheel')}   store {settings.store} ({opened})   Ctrl-C stops it\n"
        f"  gRPC    {ready.listen}   RocketMQ 5 clients, {spoken}\n"
        f"  HTTP    {ready.http.url}   /metrics /readyz /openapi.json /api/groups /api/timers\n"
        f"  disk    {room(settings.store, ready.segment_bytes)}\n"
        f"  topics  {made}\n{clock}{who_may(settings)}"
        f"next:  tidewheel send hello 'it works' --in 5s{there}\n"
        f"       tidewheel tail hello{there}"
    )


def http_option(ready: Ready) -> str:
    """Return the option that commands need to reach the broker, or an empty string for the default
    address.
    """
    is_usual = ready.http.port == HTTP_PORT_USUAL and not ready.http.is_tls
    return "" if is_usual else f" --http {ready.http.url if ready.http.is_tls else ready.http}"


def room(store: Path, segment_bytes: int) -> str:
    """Return the disk space that the store has allocated, and the free space of its volume."""
    mib = segment_bytes // 2**20
    free_mib = shutil.disk_usage(store).free // 2**20
    return f"{2 * mib} MiB taken at once: log files of {mib} MiB and one in reserve; {free_mib} MiB are left"


def who_may(settings: ServeSettings) -> str:
    """Return lines about access control, if access is not limited to this machine."""
    lines = []
    if settings.auth:
        lines.append("rights  clients say who they are; make a user: tidewheel auth user add NAME")
    elif not is_loopback(settings.listen.host):
        lines.append("rights  OPEN TO ALL who reach this machine (--insecure)")
    if settings.http_token:
        lines.append(f"token   for HTTP and the commands: export TIDEWHEEL_HTTP_TOKEN={settings.http_token}")
    elif not is_loopback(settings.http.host):
        lines.append("token   none: HTTP is OPEN TO ALL who reach this machine (--insecure)")
    return "".join(f"  {line}\n" for line in lines)
