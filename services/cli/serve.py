"""`tidewheel serve`: run a broker in this terminal."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import output

if TYPE_CHECKING:
    from services.config import ServeSettings
    from services.run import Ready

app = typer.Typer(add_completion=False)

HTTP_PORT_USUAL = 8088
VIRTUAL_CLOCK = "VIRTUAL, for tests: POST /api/clock/advance lets time pass"


def where(help_text: str) -> Any:
    """Return an option about addresses."""
    return typer.Option(help=help_text, rich_help_panel="Where it listens")


def allowed(help_text: str, *flags: str) -> Any:
    """Return an option about who may use the broker."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Who may use it")


def stored(help_text: str, *flags: str) -> Any:
    """Return an option about the store."""
    return typer.Option(*flags, help=help_text, rich_help_panel="What it stores")


def handed_out(help_text: str) -> Any:
    """Return an option about consumer groups."""
    return typer.Option(help=help_text, rich_help_panel="How it hands messages out")


def tuned(help_text: str) -> Any:
    """Return an option about waiting times."""
    return typer.Option(help=help_text, rich_help_panel="How long it waits")


@app.command()
def serve(
    store: Annotated[Path | None, stored("Folder of the store; made if missing.")] = None,
    segment_bytes: Annotated[int | None, stored("Size of one log file, for a new store.")] = None,
    auto_create: Annotated[
        bool | None, stored("Create a topic when it is first used.", "--auto-create/--no-auto-create")
    ] = None,
    queue_count: Annotated[int | None, stored("Queues of a topic made without a number.")] = None,
    flush: Annotated[
        str | None,
        stored("sync: acknowledged is on disk. async: faster, a power cut may take half a second."),
    ] = None,
    retain_hours: Annotated[float | None, stored("Delete log files older than this; else kept.")] = None,
    retain_bytes: Annotated[int | None, stored("Delete the oldest log files beyond this size.")] = None,
    group_pin_hours: Annotated[float | None, stored("How long a lagging group holds log files.")] = None,
    timers_per_topic: Annotated[int | None, stored("Delayed messages that may wait for one topic.")] = None,
    timer_history_hours: Annotated[
        float | None, stored("How long it is known how a delayed message ended.")
    ] = None,
    listen: Annotated[str | None, where("HOST:PORT for RocketMQ 5 clients; port 0 picks a free one.")] = None,
    http: Annotated[str | None, where("HOST:PORT for metrics, health and the commands.")] = None,
    advertise: Annotated[str | None, where("HOST:PORT clients are told; else what they dialled.")] = None,
    tls_certificate: Annotated[
        Path | None, where("PEM file of the certificate; else one that the broker makes for itself.")
    ] = None,
    tls_key: Annotated[Path | None, where("PEM file of its key.")] = None,
    tls_clients: Annotated[
        Path | None, where("PEM file of authorities: only clients that they vouch for, by TLS.")
    ] = None,
    plaintext: Annotated[
        str | None, where("on, or off: clients must use TLS. With --tls-clients it is off.")
    ] = None,
    connections_per_address: Annotated[
        int | None, where("Connections that one address may have at once.")
    ] = None,
    auth: Annotated[
        bool | None,
        allowed("Ask clients who they are and what they may: see tidewheel auth.", "--auth/--no-auth"),
    ] = None,
    auth_key: Annotated[
        Path | None, allowed("File with the key of users' secrets; else STORE.key. Made on first use.")
    ] = None,
    http_token: Annotated[
        Path | None, allowed("File with the token that the HTTP interface wants. Made if missing.")
    ] = None,
    http_hosts: Annotated[
        str | None,
        allowed("Names, with commas, by which the HTTP interface is dialled beside those of this machine."),
    ] = None,
    http_tls: Annotated[
        str | None, allowed("TLS for HTTP: on, off, or auto: on where more than this machine reaches it.")
    ] = None,
    insecure: Annotated[
        bool | None, allowed("Serve everybody, on addresses that others can reach, too.", "--insecure")
    ] = None,
    ready_file: Annotated[Path | None, where("File written once it serves: addresses and pid.")] = None,
    client_metrics: Annotated[
        str | None, where("on: clients send what they measure of themselves every minute; or off.")
    ] = None,
    broker_name: Annotated[str | None, where("Its name in routes and metrics.")] = None,
    housekeeping_ms: Annotated[int | None, tuned("How often to look at the room on disk.")] = None,
    check_immunity_ms: Annotated[int | None, tuned("How long a half message is left alone.")] = None,
    check_interval_ms: Annotated[int | None, tuned("Pause after a check-back; it doubles.")] = None,
    check_count_max: Annotated[int | None, tuned("Check-backs before a half message expires.")] = None,
    clock: Annotated[
        str | None, tuned("real, or virtual for tests: time can be advanced, on a store of its own.")
    ] = None,
    group_start: Annotated[
        str | None, handed_out("Where a new consumer group begins in a topic: earliest or latest.")
    ] = None,
    lite_topics: Annotated[int | None, handed_out("Lite topics that one topic may have.")] = None,
    lite_topic_bytes: Annotated[int | None, handed_out("How long the name of one may be.")] = None,
    lite_subscriptions: Annotated[
        int | None, handed_out("Lite topics that one client may subscribe to.")
    ] = None,
    attempts_max: Annotated[
        int | None, handed_out("Attempts before a message is a dead letter, for groups without a number.")
    ] = None,
    invisible_ms_min: Annotated[int | None, handed_out("Shortest lease a consumer may ask for.")] = None,
    auto_renew_lease_ms: Annotated[
        int | None, handed_out("Lease of a push consumer, renewed as long as it is heard from.")
    ] = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Every option can come from the environment too: --listen is TIDEWHEEL_LISTEN.
    An acknowledged message is on one disk; there is no replica yet.

    Example: tidewheel serve --store ./store --listen 127.0.0.1:8081 --http 127.0.0.1:8088
    """
    flags = dict(locals())
    from services.config import ServeSettings, load
    from services.run import serve as run

    settings = load(ServeSettings, **flags)
    run(settings, lambda ready: announce(settings, ready))


def announce(settings: ServeSettings, ready: Ready) -> None:
    """Say where the broker is and what to type next."""
    is_usual = ready.http.port == HTTP_PORT_USUAL and not ready.http.is_tls
    there = "" if is_usual else f" --http {ready.http.url if ready.http.is_tls else ready.http}"
    opened = "new" if ready.boot == 0 else f"start {ready.boot + 1}"
    made = "made when first used" if settings.auto_create else "made by: tidewheel topic create NAME"
    spoken = "TLS only" if settings.is_tls_only else "plaintext and TLS"
    clock = f"  clock   {VIRTUAL_CLOCK}\n" if settings.clock == "virtual" else ""
    output.say(
        f"tidewheel {version('tidewheel')}   store {settings.store} ({opened})   Ctrl-C stops it\n"
        f"  gRPC    {ready.listen}   RocketMQ 5 clients, {spoken}\n"
        f"  HTTP    {ready.http.url}   /metrics /readyz /openapi.json /api/groups /api/timers\n"
        f"  topics  {made}\n{clock}{who_may(settings)}"
        f"next:  tidewheel send hello 'it works' --in 5s{there}\n"
        f"       tidewheel tail hello{there}"
    )


def who_may(settings: ServeSettings) -> str:
    """Say whom the broker serves, where that is not everybody on this machine."""
    from services.doors import is_loopback

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
