"""`tidewheel cluster`: brokers on several machines that replicate one store through a shared log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog import layout
from commitlog.errors import NotAStore
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.status.cluster import NODES, facts, node_rows
from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from sharedlog.engines import SharedLog

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Brokers on several machines that keep one store, by a shared log.\n\n"
    "Example: tidewheel cluster create postgresql://tidewheel@db/orders",
)

StoreOption = Annotated[Path, typer.Option("--store", help="Folder of the node.")]
NodeOption = Annotated[str, typer.Option("--node", help="The name of the first node.")]
UrlArgument = Annotated[
    str | None,
    typer.Argument(
        help="postgresql://USER@HOST:PORT/DATABASE or kafka://HOST:PORT/TOPIC; default: TIDEWHEEL_CLUSTER."
    ),
]


@app.command()
def create(
    url: UrlArgument = None,
    *,
    segment_bytes: Annotated[
        int, typer.Option("--segment-bytes", help="Size of one log file, the same on all nodes.", min=4 << 20)
    ] = 256 << 20,
    store: Annotated[
        Path | None,
        typer.Option("--from", help="The store of a single broker, which becomes the store of a node."),
    ] = None,
    node: NodeOption = "a",
) -> None:
    """Create a cluster in a shared log. Start its nodes afterwards.

    With --from, the cluster begins with the content of a store.

    Example: tidewheel cluster create postgresql://tidewheel@db/orders --from ./tidewheel-data
    """
    from sharedlog.engines import create as begin

    url = url_of(url)
    with _engine_at(url) as engine:
        if store is None:
            cluster = begin(engine, {"segment_bytes": segment_bytes})
        else:
            from services.cluster.founding import create_cluster_from_store

            cluster, end = create_cluster_from_store(engine, store, node, now_ms())
            output.say(f"It begins with the {end} bytes of log in {store}, now the store of node {node}.")
        output.say(f"Cluster {cluster.hex()} begins.")
        for sentence in [*engine.check_settings(), *engine.list_risky_settings()]:
            output.say(f"look:  {sentence}")
    _say_next(url, node, store)


@app.command()
def restore(
    url: UrlArgument = None,
    *,
    store: Annotated[Path, typer.Option("--from", help="The store of a stopped node.")],
    node: Annotated[
        str | None, typer.Option("--node", help="The name of the node; default: the name in the store.")
    ] = None,
    accepted_loss: Annotated[
        int | None, typer.Option("--accept-loss-after", help="The offset after which all records are lost.")
    ] = None,
    accepted_damage: Annotated[
        int | None, typer.Option("--accept-damaged", help="The number of damaged bytes before this offset.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new cluster in a new shared log from the store of a node, after the shared log was lost.

    All undamaged records that the node has seen accepted are restored, including records after damage.
    Without --accept-loss-after, the command prints how much would be restored and what is missing, changes
    nothing, and exits with code 4.

    Example: tidewheel cluster restore postgresql://tidewheel@db/orders2 --from /var/lib/tidewheel
    """
    from services.cluster.errors import LossNotAccepted
    from services.cluster.founding import restore_cluster

    url = url_of(url)
    with _engine_at(url) as engine:
        try:
            restored = restore_cluster(engine, store, node, now_ms(), accepted_loss, accepted_damage)
        except LossNotAccepted as error:
            if as_json:
                output.print_json({"cluster": None, "store": str(store), **error.facts})
            raise
    cluster, end, left, node = restored
    if as_json:
        output.print_json({"cluster": cluster.hex(), "store": str(store)} | left.facts())
        return
    output.say(f"Cluster {cluster.hex()} begins with {store} up to byte {end}; what came after it is lost.")
    output.say(f"It had {left.description()}.")
    _say_next(url, node, store)


@app.command()
def rejoin(
    url: UrlArgument = None,
    *,
    store: Annotated[
        Path, typer.Option("--from", help="A copy of the store of a node, which becomes the store of NODE.")
    ],
    node: NodeOption = "a",
) -> None:
    """Turn a copy made by `store snapshot` into the store of a node, which continues to read the shared log.

    Example: tidewheel cluster rejoin postgresql://tidewheel@db/orders --from ./backup
    """
    from services.cluster.copies.rejoining import rejoin_cluster as joined

    url = url_of(url)
    with _engine_at(url) as engine:
        record = joined(engine, store, node)
    output.say(f"{store} is the store of node {node} again, and reads on from record {record}.")
    _say_next(url, node, store)


def url_of(url: str | None) -> str:
    """Return the given URL of the shared log, or the URL from the settings."""
    from services.settings.config import EngineSettings, load

    found = load(EngineSettings, cluster=url).cluster
    if not found:
        raise ConfigurationError("Name the shared log: give its URL, or set TIDEWHEEL_CLUSTER to it.")
    return found


@contextmanager
def _engine_at(url: str) -> Iterator[SharedLog]:
    """Yield the engine of a shared log.

    If it does not answer, the error includes the command that finds the cause.
    """
    from sharedlog.engines import engine_of, without_password
    from sharedlog.errors import EngineUnavailable

    with closing(engine_of(url)) as engine:
        try:
            yield engine
        except EngineUnavailable as error:
            look = f"tidewheel cluster doctor {quote(without_password(url))}"
            raise type(error)(f"{error.detail} To find the cause: {look}") from error


def _say_next(url: str, node: str, store: Path | None) -> None:
    from sharedlog.engines import without_password

    where = store or f"./store-{node}"
    output.say(
        f"next:  tidewheel serve --cluster {quote(without_password(url))} --node {node} --store {where}"
    )


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@app.command()
def doctor(url: UrlArgument = None, *, as_json: JsonOption = False) -> None:
    """Check whether a shared log can be reached and written, and show its content and the settings of its
    engine.

    Run the command on the machine of a node. The shared log is not changed. Exit code 1: a problem was found.

    Example: tidewheel cluster doctor postgresql://tidewheel@db/orders
    """
    from services.cli.diagnosis.doctor import report
    from services.doctor.shared_log import examined

    report(examined(url_of(url)), as_json=as_json)


@app.command()
def status(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the state of a cluster as seen by a node: leader, epoch, and the node's position in the log.

    Example: tidewheel cluster status --http 127.0.0.1:8088
    """
    found = broker_at(http).get("cluster")
    if as_json:
        output.print_json(found)
        return
    output.print_table(("cluster", ""), facts(found))


@app.command()
def nodes(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the copy of the store on each node.

    The shared log is retained from the first record that a copy needs.

    Example: tidewheel cluster nodes --http 127.0.0.1:8088
    """
    found = broker_at(http).get("cluster")
    if as_json:
        output.print_json(found["copies"])
        return
    output.print_table(NODES, node_rows(found))
    if found["role"] != "leading" and found["leader"] is not None:
        output.say(f"How far followers lag the leader sees: --http {found['leader']['http']}")


@app.command()
def move(
    node: Annotated[str, typer.Argument(help="The next leader; default: any other node.")] = "",
    http: HttpOption = None,
) -> None:
    """Transfer leadership to another node. Clients wait briefly, and no call fails.

    Example: tidewheel cluster move b --http 127.0.0.1:8088
    """
    leader = broker_at(http).post("cluster", "move", body={"node": node})["leader"]
    output.say(f"Node {leader['node']} leads, at {leader['listen']}.")


@app.command()
def forget(
    node: Annotated[str, typer.Argument(help="A node that will not return with its store.")],
    http: HttpOption = None,
) -> None:
    """Release the records that the shared log retains for a node.

    If the node returns, it copies another node's store.

    Example: tidewheel cluster forget c --http 127.0.0.1:8088
    """
    broker_at(http).post("cluster", "forget", body={"node": node})
    output.say(f"Node {node} is forgotten: the shared log is trimmed without it.")


@app.command("set-version")
def set_version(
    version: Annotated[
        int | None,
        typer.Argument(help="The version; default: the highest version that all nodes support.", min=1),
    ] = None,
    http: HttpOption = None,
) -> None:
    """Raise the version of the cluster after all nodes support it. The version cannot be lowered.

    Upgrade every node first. Until then, newer nodes write only data that older nodes can read.

    Example: tidewheel cluster set-version --http 127.0.0.1:8088
    """
    body = {} if version is None else {"version": version}
    finalized = broker_at(http).post("cluster", "set-version", body=body)["finalized_version"]
    output.say(f"Version {finalized} is finalized.")


@app.command()
def refetch(
    store: StoreOption,
    accepted_loss: Annotated[
        int | None,
        typer.Option(
            "--accept-loss-of", help="Discard records that only this node has, up to this byte of the log."
        ),
    ] = None,
) -> None:
    """Mark the copy of a stopped node for replacement.

    At its next start, the node copies another node's store or reads the whole log.

    The old copy is deleted after the new copy contains all records that this node has seen accepted. With
    --accept-loss-of, the old copy is deleted immediately. Give the byte offset that the node reports when it
    refuses a copy or halts.

    Example: tidewheel cluster refetch --store /var/lib/tidewheel
    """
    from services.cluster.copies.refetching import request_refetch as mark
    from services.cluster.founding import lock_store

    if not (store / layout.CLUSTER).exists():
        raise NotAStore(f"{store} is no store of a cluster's node: nothing was changed.")
    with lock_store(store, is_node=True) as disk:
        mark(disk, accepted_loss)
    output.say(f"The copy in {store} is to be replaced. Start the node: it gets another's.")
