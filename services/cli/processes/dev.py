"""`tidewheel dev`: a broker for experiments, with a separate data folder and sample topics.

broker is ready --> missing samples are created over HTTP --> example commands are printed
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Final

import typer

from services.cli.processes.serve import http_option
from services.cli.terminal import output
from services.cli.terminal.api import broker_at
from services.http.api import Api
from services.http.curl import curl
from services.settings.config import HTTP_USUAL, LISTEN_USUAL, ServeSettings, load
from tidewheel.errors import TidewheelError

if TYPE_CHECKING:
    from services.server.parts import Ready

app = typer.Typer(add_completion=False)

FOLDER: Final = Path("tidewheel-dev")
SEGMENT_BYTES: Final = 16 << 20
TOPICS: Final = ("orders", "deadlines", "ticks")
SCHEDULE: Final = "ticks"
EVERY_TEN_SECONDS: Final = {
    "cron": "*/10 * * * * *",
    "topic": "ticks",
    "body": "ten seconds have passed",
    "missed": "skip",
}


@app.command()
def dev(
    store: Annotated[Path, typer.Option("--store", help="Folder of the data; created if missing.")] = FOLDER,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address for RocketMQ 5 clients; port 0 selects a free port.",
        ),
    ] = str(LISTEN_USUAL),
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Address for HTTP and the commands.")
    ] = str(HTTP_USUAL),
) -> None:
    """Run a broker for experiments until Ctrl-C. The data is kept in its folder.

    The topics orders, deadlines and ticks are created, and a schedule that sends to ticks every ten seconds.
    Other settings are read from the environment or tidewheel.toml, as for: tidewheel serve

    Example: tidewheel dev --store /tmp/try
    """
    from services.server.run import serve as run

    settings = load(
        ServeSettings,
        None,
        store=str(store),
        listen=listen,
        http=http,
        segment_bytes=str(SEGMENT_BYTES),
        log_level="warning",
        cluster="",
    )
    run(settings, lambda ready: Thread(target=begin, args=(settings, ready), daemon=True).start())
    anew = f" To begin anew: rm -r {store}" if store == FOLDER else ""
    output.say(f"Stopped. The data is in {store}: the next start goes on with it.{anew}")


def begin(settings: ServeSettings, ready: Ready) -> None:
    """Create the samples and print example commands.

    If this fails, the error is printed and the broker continues.
    """
    tries = to_try(settings, ready)
    try:
        if not make_samples(broker_at(ready.http.url)):
            tries = "no samples: this store has other topics. Give --store an empty folder for some."
    except TidewheelError as error:
        output.say(f"The samples could not be made. {error}")
    output.offer(f"{banner(settings, ready)}\n{tries}")


def make_samples(api: Api) -> bool:
    """Create the sample topics and the schedule if they do not exist.

    Returns False without a change if the store has topics but none of the samples, because it belongs to
    another broker.
    """
    there = {topic["name"] for topic in api.get("topics")["topics"]}
    if there and there.isdisjoint(TOPICS):
        return False
    for name in TOPICS:
        if name not in there:
            api.post("topics", body={"name": name})
    if SCHEDULE not in {one["name"] for one in api.get("schedules")["schedules"]}:
        api.put("schedules", SCHEDULE, body=EVERY_TEN_SECONDS)
    return True


def banner(settings: ServeSettings, ready: Ready) -> str:
    """Return the addresses of the broker as text."""
    opened = "new" if ready.boot == 0 else f"start {ready.boot + 1}"
    return (
        f"tidewheel {version('tidewheel')}   data {settings.store} ({opened})   Ctrl-C stops it\n"
        f"  HTTP    {ready.http.url}   in a browser: the console; /openapi.json /metrics /readyz\n"
        f"  gRPC    {ready.listen}   RocketMQ 5 clients"
    )


def to_try(settings: ServeSettings, ready: Ready) -> str:
    """Return the sample topics and three example commands, which need the token if there is one."""
    there, key = http_option(ready), "--topic deadlines --timer-key order:7"
    receive = '{"topic": "ticks", "wait": "15s"}'  # curl supports --json only since 7.82
    token = settings.http_token
    export = f"  export TIDEWHEEL_HTTP_TOKEN={quote(str(token.absolute()))}\n" if token else ""
    return (
        f"  topics  {', '.join(TOPICS)}; others are made when first used\n"
        f"try, in another terminal:\n{export}"
        f"  tidewheel tail ticks --limit 1{there}\n"
        f"  tidewheel send deadlines 'order 7 was not paid' --in 30m --timer-key order:7{there} && "
        f"tidewheel timer cancel {key}{there}\n"
        f"  {curl(token is not None)} -H content-type:application/json -d '{receive}' "
        f"{ready.http.url}/api/groups/me/receive"
    )
