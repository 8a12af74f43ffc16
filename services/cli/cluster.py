"""`tidewheel cluster`: brokers on several machines that keep one store, by a shared log."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption
from services.cli.times import both, span

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Brokers on several machines that keep one store, by a shared log.\n\n"
    "Example: tidewheel cluster create postgresql://tidewheel@db/orders",
)

UrlArgument = Annotated[
    str, typer.Argument(help="postgresql://USER@HOST:PORT/DATABASE or kafka://HOST:PORT/TOPIC.")
]


@app.command()
def create(
    url: UrlArgument,
    segment_bytes: Annotated[
        int, typer.Option("--segment-bytes", help="Size of one log file, the same on all nodes.", min=4 << 20)
    ] = 256 << 20,
) -> None:
    """Begin a cluster in a shared log; then run its nodes.

    Example: tidewheel cluster create postgresql://tidewheel@db/orders
    """
    from sharedlog.engines import create as begin
    from sharedlog.engines import engine_of

    engine = engine_of(url)
    cluster = begin(engine, {"segment_bytes": segment_bytes})
    output.say(f"Cluster {cluster.hex()} begins.")
    for sentence in [*engine.trouble(), *engine.notes()]:
        output.say(f"look:  {sentence}")
    engine.close()
    output.say(f"next:  tidewheel serve --cluster {quote(url)} --node a --store ./store-a")


@app.command()
def doctor(url: UrlArgument, as_json: JsonOption = False) -> None:
    """Say whether a shared log can be reached and written, what lies there, and how its engine is set.

    Run it where a node runs. Nothing is left there. Exit code 1: something is wrong.

    Example: tidewheel cluster doctor postgresql://tidewheel@db/orders
    """
    from services.cli.doctor import report
    from services.doctor.shared_log import examined

    report(examined(url), as_json=as_json)


@app.command()
def status(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show what a node knows of its cluster: who leads, since which epoch, and how far it has read.

    Example: tidewheel cluster status --http 127.0.0.1:8088
    """
    found = Api(http).get("cluster")
    if as_json:
        output.print_json(found)
        return
    leader = found["leader"]
    rows = [
        ("node", f"{found['node']}, {found['role']}"),
        ("leader", f"{leader['node']} at {leader['listen']}" if leader else "none is known"),
        ("epoch", found["epoch"]),
        ("log end", found["end_offset"]),
        ("behind", behind(found)),
        ("clock", skewed(found["clock_skew_ms"])),
        ("nodes", ", ".join(found["nodes"])),
    ]
    if (took_over := found["took_over"]) is not None:
        rows.append(("took over", f"{both(took_over['at_ms'])}: {took_over['why']}"))
    rows += [("HALTED", found["halted"])] if found["halted"] else []
    rows += [("trouble", sentence) for sentence in found["engine_trouble"]]
    output.print_table(("cluster", ""), rows)


def behind(found: dict[str, Any]) -> str:
    """Say how far a node is behind the shared log, or how much of the leader's nobody has accepted."""
    if found["role"] == "leading":
        return f"{found['unaccepted_bytes']} bytes are not accepted yet"
    if found["lag_ms"] is None:
        return "nothing was read yet"
    return f"{found['lag_records']} records, {span(found['lag_ms'])}"


def skewed(skew_ms: int | None) -> str:
    """Say how the clock of a node differs from the engine's."""
    if skew_ms is None:
        return "not compared yet"
    return f"{span(abs(skew_ms))} {'ahead of' if skew_ms >= 0 else 'behind'} the engine's, or less"
