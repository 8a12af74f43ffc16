"""`tidewheel client`: connected clients, and requests to a client."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.listing import lists
from services.times.display import exactly

app = typer.Typer(add_completion=False)

ClientArgument = Annotated[str, typer.Argument(help="The id of a client, as shown by `tidewheel client ls`.")]


@app.callback()
def client() -> None:
    """Show connected clients, their metrics and threads; verify a message with a client, or reconnect it."""


@lists(app)
def list_clients(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the connected clients.

    Example: tidewheel client ls
    """
    answer = broker_at(http).get("clients")
    if as_json:
        output.print_json(answer)
        return
    columns = ("client", "kind", "group", "language", "version", "can be asked", "seen")
    rows = (
        (
            one["client_id"],
            one["kind"],
            one["group"],
            one["language"],
            one["version"],
            "yes" if one["can_be_asked"] else "no",
            exactly(int(one["seen_ms"])),
        )
        for one in answer["clients"]
    )
    if answer["clients"]:
        output.print_table(columns, rows)
    else:
        output.say("nobody is connected now.")


@app.command()
def show(client: ClientArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show a client and its metrics, which clients report every minute.

    Python, Java, C#, Go and C++ clients report metrics. `median` and `p99` are upper bounds of histogram
    buckets.

    Example: tidewheel client show host@4711@1@x
    """
    answer = broker_at(http).get("clients", "show", client=client)
    if as_json:
        output.print_json(answer)
        return
    one = answer["client"]
    output.show(f"{one['client_id']}   {one['kind']} {one['group']}".rstrip())
    output.show(f"{one['language']} {one['version']}   seen {exactly(int(one['seen_ms']))}")
    if not answer["measured"]:
        output.show("It has not told yet what it measured: clients do every minute, if they do at all.")
        return
    columns = ("measured", "topic", "group", "status", "count", "mean", "median", "p99")
    output.print_table(columns, map(measured_row, answer["measured"]))


def measured_row(one: dict[str, Any]) -> tuple[str, ...]:
    """Return a time series of a client as a table row: a histogram of call durations, or a number."""
    what = (one["name"].removeprefix("rocketmq_"), one["topic"], one["group"], one["status"])
    if one["count"] is None:
        return (*what, f"{one['value']:,.0f}", "", "", "")
    mean = "" if one["mean_ms"] is None else f"{one['mean_ms']:,.1f} ms"
    return (*what, f"{one['count']:,}", mean, bound(one, "p50_ms"), bound(one, "p99_ms"))


def bound(one: dict[str, Any], part: str) -> str:
    """Return the histogram bound below which a share of the calls is."""
    if one[part] is None:
        return f"> {one['bounds_ms'][-1]:,.0f} ms" if one["count"] else ""
    return f"<= {one[part]:,.0f} ms"


@app.command()
def stack(client: ClientArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Request a thread dump from a client. Java, Go and Node clients answer.

    Example: tidewheel client stack host@4711@1@x
    """
    answer = broker_at(http).post("clients", "stack", body={"client": client})
    if as_json:
        output.print_json(answer)
    else:
        output.show(*answer["stack"].split("\n"))


@app.command()
def verify(
    client: ClientArgument,
    topic: Annotated[str, typer.Option(help="The topic of the message.")],
    queue: Annotated[int, typer.Option(help="The queue of the message.")],
    offset: Annotated[int, typer.Option(help="The offset of the message in the queue.")],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a push consumer process a message again, outside its group. The group's offsets do not change.

    Exit code 1: the consumer failed.

    Example: tidewheel client verify host@4711@1@x --topic orders --queue 0 --offset 41
    """
    wanted = {"client": client, "topic": topic, "queue_id": queue, "queue_offset": offset}
    answer = broker_at(http).post("clients", "verify", body=wanted)
    if as_json:
        output.print_json(answer)
    else:
        output.show(answer["code"])
    raise typer.Exit(0 if answer["code"] == "OK" else 1)


@app.command()
def reconnect(client: ClientArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Request a client to reconnect, for example before this broker is moved.

    Example: tidewheel client reconnect host@4711@1@x
    """
    answer = broker_at(http).post("clients", "reconnect", body={"client": client})
    if as_json:
        output.print_json(answer)
    else:
        output.show(f"{client} was told to connect again.")
