"""`tidewheel shop`: run one service of the shop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.terminal.api import HttpOption
from services.process import logs

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Run one service of the shop over gRPC (services/shop/protos/shop.proto).\n\n"
    "Example: tidewheel shop orders --broker 127.0.0.1:8081 --listen 127.0.0.1:9001",
)

Broker = Annotated[str, typer.Option(help="HOST:PORT of the broker.")]
Listen = Annotated[str, typer.Option(help="HOST:PORT to serve on; port 0 selects a free port.")]
ReadyFile = Annotated[
    Path | None,
    typer.Option(help="File for the address and process id, as JSON, written when the service is ready."),
]
Database = Annotated[str, typer.Option(help="The database, as an SQLAlchemy URL.")]


@app.command()
def orders(
    broker: Broker = "127.0.0.1:8081",
    database: Database = "sqlite:///orders.db",
    listen: Listen = "127.0.0.1:9001",
    timeout: Annotated[
        float, typer.Option(help="Seconds until the payment deadline, if an order has none.", min=1)
    ] = 1800,
    ready_file: ReadyFile = None,
) -> None:
    """Run the order service. Orders that are not paid in time are timed out.

    Example: tidewheel shop orders --broker 127.0.0.1:8081 --database sqlite:///orders.db --timeout 900
    """
    from services.shop.orders import service as order_service

    logs.configure()
    order_service.run(broker, database, listen, round(timeout * 1000), ready_file)


@app.command()
def carts(
    broker: Broker = "127.0.0.1:8081",
    redis: Annotated[
        str | None, typer.Option(help="The Redis database, as redis:// URL. [default: bundled]")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder for the data of the bundled Redis.")] = Path(
        "carts-data"
    ),
    listen: Listen = "127.0.0.1:9002",
    ready_file: ReadyFile = None,
) -> None:
    """Run the cart service. Ordered items are removed from the carts.

    Example: tidewheel shop carts --broker 127.0.0.1:8081 --redis redis://127.0.0.1:6379/0
    """
    from services.shop.carts import service as cart_service
    from services.shop.carts.redis_server import bundled_redis

    logs.configure()
    if redis is not None:
        cart_service.run(broker, redis, listen, ready_file)
    else:
        with bundled_redis(data) as url:
            cart_service.run(broker, url, listen, ready_file)


@app.command()
def pushes(
    broker: Broker = "127.0.0.1:8081",
    http: HttpOption = None,
    database: Database = "sqlite:///pushes.db",
    listen: Listen = "127.0.0.1:9003",
    ready_file: ReadyFile = None,
) -> None:
    """Run the push service.

    Texts are delivered at a given time, or repeatedly by a cron schedule in the broker.

    Example: tidewheel shop pushes --broker 127.0.0.1:8081 --database sqlite:///pushes.db
    """
    from services.settings.config import ClientSettings, load
    from services.shop.pushes import service as push_service

    logs.configure()
    address = load(ClientSettings, http=http).http.all[0]
    push_service.run(broker, address.url, database, listen, ready_file)
