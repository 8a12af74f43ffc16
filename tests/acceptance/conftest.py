"""A broker and the shop's services as their users run them: `tidewheel` commands, spoken to over gRPC."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis import Redis
from sqlalchemy import Engine, text

from services.shop.calls import stub_of
from services.shop.carts.carts import open_redis
from services.shop.carts.redis_server import bundled_redis
from services.shop.database import open_database, sqlite_url
from services.shop.demo.processes import Processes
from services.shop.demo.settings import Layout
from services.shop.demo.settling import broker_gauges
from services.shop.demo.story import create_topic
from services.shop.generated import shop_pb2
from services.shop.topics import TOPIC_TYPES
from tests.acceptance.demo import run as run_demo
from tests.acceptance.demo import write_orders
from tests.command import tidewheel
from tests.served import serve

AWAIT_SECONDS = 60
TIMEOUT_MS = 600_000


@dataclass
class Shop:
    """One broker and whichever services a test starts."""

    layout: Layout
    processes: Processes
    redis_url: str
    broker: str
    http: str
    addresses: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, *armed: str) -> None:
        """Start a service, armed with faults for its first, second ... start."""
        databases = {
            "orders": ("--database", sqlite_url(self.layout.orders_database)),
            "carts": ("--redis", self.redis_url),
            "pushes": ("--database", sqlite_url(self.layout.pushes_database), "--http", self.http),
        }
        arguments = ("shop", name, "--broker", self.broker, *databases[name])
        ready = self.processes.start(*arguments, name=name, armed=list(armed))
        self.addresses[name] = ready["listen"]

    @cached_property
    def orders(self) -> Any:
        return stub_of("Orders", grpc.insecure_channel(self.addresses["orders"]))

    @cached_property
    def carts(self) -> Any:
        return stub_of("Carts", grpc.insecure_channel(self.addresses["carts"]))

    @cached_property
    def pushes(self) -> Any:
        return stub_of("Pushes", grpc.insecure_channel(self.addresses["pushes"]))

    @cached_property
    def orders_engine(self) -> Engine:
        return open_database(sqlite_url(self.layout.orders_database))

    @cached_property
    def pushes_engine(self) -> Engine:
        return open_database(sqlite_url(self.layout.pushes_database))

    @cached_property
    def redis(self) -> Redis:
        return open_redis(self.redis_url)

    def place(self, order_id: str, customer_id: str = "C1", timeout_ms: int = TIMEOUT_MS) -> Any:
        """Place an order of three of one article and one of another."""
        lines = [
            shop_pb2.Line(sku="85123A", quantity=3, unit_price_pence=255),
            shop_pb2.Line(sku="22423", quantity=1, unit_price_pence=1275),
        ]
        request = shop_pb2.PlaceRequest(
            order_id=order_id, customer_id=customer_id, lines=lines, timeout_ms=timeout_ms
        )
        return self.orders.Place(request, wait_for_ready=True)

    def add(self, add_id: str, quantity: int, customer_id: str = "C1") -> None:
        """Put the first article into a cart."""
        line = shop_pb2.AddLine(add_id=add_id, sku="85123A", quantity=quantity)
        self.carts.Add(shop_pb2.AddRequest(customer_id=customer_id, lines=[line]), wait_for_ready=True)

    def cart(self, customer_id: str = "C1") -> dict[str, int]:
        """What is in a cart."""
        request = shop_pb2.CartRequest(customer_id=customer_id)
        return dict(self.carts.Get(request, wait_for_ready=True).quantities)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the order database."""
        with self.orders_engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def rows_of_pushes(self, condition: str) -> list[tuple[Any, ...]]:
        """Ask the push database."""
        query = f"SELECT push_id, due_ms, delivered_ms FROM pushes WHERE {condition} ORDER BY due_ms"
        with self.pushes_engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def gauge(self, name: str) -> int:
        """One of the broker's metrics."""
        return broker_gauges(self.http).get(name, 0)

    def log_of(self, name: str) -> str:
        """What a process has logged."""
        return (self.layout.logs / f"{name}.log").read_text()


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + AWAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def loop_for_the_official_client(main_loop: None) -> None:
    """Have one in each test."""


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[[Callable[[], object]], None]:
    return eventually


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    layout = Layout(tmp_path / "shop")
    layout.prepare()
    with bundled_redis(layout.redis) as redis_url, Processes(layout) as processes:
        store = ("--store", str(layout.store), "--segment-bytes", str(16 * 1024 * 1024))
        checks = ("--check-immunity-ms", "1500", "--check-interval-ms", "500")
        ready = processes.start("serve", *store, *checks, "--http", "127.0.0.1:0", name="broker")
        for name, message_type in TOPIC_TYPES.items():
            create_topic(ready["http"], name, message_type)
        yield Shop(layout, processes, redis_url, ready["listen"], ready["http"])
        processes.require_health()


@pytest.fixture(scope="session")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, Any]:
    """One demo with faults, from the orders to its audit, and its summary; nobody may change what it left."""
    folder = tmp_path_factory.mktemp("faulty")
    orders = folder / "orders.csv"
    write_orders(orders)
    layout = Layout(folder / "out")
    done = run_demo(folder, "--orders", str(orders), "--faults", "--out", str(layout.root))
    assert done.returncode == 0, done.stdout + done.stderr
    return layout, json.loads(done.stdout)


class Serving:
    """A broker that lets consumers lease for as short as they like, and its commands."""

    def __init__(self, folder: Path) -> None:
        served = serve(folder, "--queue-count", "1", "--invisible-ms-min", "100")
        self.process, self.listen, self.http = served.process, served.listen, served.http

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command in a terminal of 100 characters; returns all that it said."""
        environment = {"TIDEWHEEL_HTTP": self.http, "NO_COLOR": "1", "COLUMNS": "100"}
        done = tidewheel(*arguments, environment=environment)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said

    def json(self, *arguments: str) -> Any:
        """Return what a command says as JSON."""
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    broker = Serving(tmp_path)
    yield broker
    broker.process.kill()
    broker.process.wait()
