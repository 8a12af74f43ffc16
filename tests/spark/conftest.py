"""A small shop as it really is: the real broker core on a real disk, SQLite, and a real redis-server.

Time is an argument, so a shop's whole day passes at once. Only the network between the parts is left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from redis import Redis
from sqlalchemy import create_engine, insert, update

from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, Resolution, RunTimersJob
from services.shop.carts.carts import Addition, Carts
from services.shop.carts.redis_server import bundled_redis
from services.shop.tables import order_lines, order_metadata, orders, push_metadata, pushes
from services.shop.topics import (
    CARTS_GROUP,
    ORDER_CREATED,
    ORDER_PAID,
    ORDER_TIMEOUTS,
    ORDERS_GROUP,
    PUSHES,
    PUSHES_GROUP,
    TOPIC_TYPES,
)
from spark_jobs.layout import RunFolders
from spark_jobs.main import Inputs, Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.report.summary import AuditSummary
from spark_jobs.session import spark_session
from tests import kept_java

START_MS = 1_700_000_000_000
TIMEOUT_MS = 30_000
Lines = dict[str, int]


class Half(NamedTuple):
    """What ends a half message."""

    topic: str
    transaction_id: str
    message_id: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that run commands: `spark` takes over the Java that their audits have warmed."""
    items.sort(key=lambda item: "spark" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests, on one core."""
    folder = tmp_path_factory.mktemp("spark")
    stack = ExitStack()
    with pytest.MonkeyPatch.context() as begins:
        for name, value in kept_java.taken().items():
            begins.setenv(name, value)
        session = stack.enter_context(
            spark_session(folder, folder / "spark.log", quick=True, master="local[1]")
        )
    with stack:
        yield session


@pytest.fixture(scope="session")
def _readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture
def readers_folder(_readers_folder: Path) -> Iterator[Path]:
    """An empty folder, the same for all tests, so that their audits may share a Java (`tests.kept_java`)."""
    yield _readers_folder
    for made in _readers_folder.iterdir():
        shutil.rmtree(made) if made.is_dir() else made.unlink()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A redis-server of our own."""
    with bundled_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@dataclass
class Shop:
    """A shop with its stores below `folder`; its verbs do what the services do."""

    folder: Path
    redis_url: str
    now_ms: int = START_MS
    orders: dict[str, tuple[str, Lines]] = field(default_factory=dict)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.disk = RealDisk(self.store)
        settings = BrokerSettings(segment_bytes=8 * 1024, auto_create_topics=False)
        self.broker = Broker.open(self.disk, settings, self.now_ms)
        for topic, kind in (TOPIC_TYPES | {ORDER_TIMEOUTS: "MIXED"}).items():  # tests set timers of no order
            self.broker.topics.create(topic, MessageType(kind), 2, self.now_ms)
        self.flush()
        self.database = create_engine(self.orders_url)
        order_metadata.create_all(self.database)
        self.push_database = create_engine(self.pushes_url)
        push_metadata.create_all(self.push_database)
        self.redis = Redis.from_url(self.redis_url, decode_responses=True)
        self.redis.flushdb()
        self.carts = Carts(self.redis, lambda: self.now_ms)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def orders_url(self) -> str:
        return f"sqlite:///{self.folder / 'orders.db'}"

    @property
    def pushes_url(self) -> str:
        return f"sqlite:///{self.folder / 'pushes.db'}"

    def place(self, order_id: str, customer_id: str, lines: Lines) -> None:
        """Fills the cart and places an order of it: two halves, rows, two commits."""
        self.fill_cart(customer_id, lines)
        halves = self.half(order_id, customer_id, lines), self.half_deadline(order_id)
        self.write_rows(order_id, customer_id, lines)
        for half in halves:
            self.end(half, Resolution.COMMIT)

    def fill_cart(self, customer_id: str, lines: Lines) -> None:
        self.numbers += 1
        self.carts.add(
            customer_id, [Addition(f"{self.numbers}-{sku}", sku, count) for sku, count in lines.items()]
        )

    def half_deadline(self, order_id: str) -> Half:
        """Sends the half of an order's deadline."""
        due_ms = self.now_ms + TIMEOUT_MS
        body = {"order_id": order_id, "due_ms": due_ms}
        key = {"TW_TIMER_KEY": f"order:{order_id}"}
        return self.send_half(ORDER_TIMEOUTS, order_id, body, delivery_ms=due_ms, properties=key)

    def half(self, order_id: str, customer_id: str, lines: Lines) -> Half:
        """Sends the half of an order."""
        self.orders[order_id] = (customer_id, lines)
        listed = [{"sku": sku, "quantity": count, "unit_price_pence": 100} for sku, count in lines.items()]
        body = {"order_id": order_id, "customer_id": customer_id, "placed_ms": self.now_ms, "lines": listed}
        return self.send_half(ORDER_CREATED, order_id, body)

    def half_payment(self, order_id: str) -> Half:
        """Sends the half of a payment, which carries the cancel of the deadline."""
        cancel = {"TW_TIMER_CANCEL": f"order:{order_id}", "TW_TIMER_TOPIC": ORDER_TIMEOUTS}
        body = {"order_id": order_id, "paid_ms": self.now_ms}
        return self.send_half(ORDER_PAID, order_id, body, properties=cancel)

    def send_half(self, topic: str, order_id: str, body: Any, **attributes: Any) -> Half:
        """Sends a half."""
        receipt = self.send(topic, order_id, body, transactional=True, **attributes)
        return Half(topic, receipt.transaction_id, receipt.message_id)

    def end(self, half: Half, resolution: Resolution) -> None:
        """Ends a half."""
        self.broker.transactions.end(*half, resolution, self.now_ms)
        self.flush()

    def write_rows(self, order_id: str, customer_id: str, lines: Lines) -> None:
        row: dict[str, Any] = {"order_id": order_id, "customer_id": customer_id, "status": "PLACED"}
        row |= {"total_pence": 100 * sum(lines.values()), "placed_ms": self.now_ms}
        row |= {"due_ms": self.now_ms + TIMEOUT_MS}
        listed = [
            {"order_id": order_id, "sku": sku, "quantity": count, "unit_price_pence": 100}
            for sku, count in lines.items()
        ]
        with self.database.begin() as connection:
            connection.execute(insert(orders), row)
            connection.execute(insert(order_lines), listed)

    def set_order(self, order_id: str, **values: Any) -> None:
        with self.database.begin() as connection:
            connection.execute(update(orders).where(orders.c.order_id == order_id).values(values))

    def pay(self, order_id: str) -> None:
        half = self.half_payment(order_id)
        self.set_order(order_id, status="PAID", paid_ms=self.now_ms)
        self.end(half, Resolution.COMMIT)

    def clear_carts(self) -> None:
        """The cart service consumes what is there."""
        for delivery in self.consume(CARTS_GROUP, ORDER_CREATED):
            body = json.loads(delivery.message.body)
            lines = [(line["sku"], line["quantity"]) for line in body["lines"]]
            self.carts.clear(body["customer_id"], body["order_id"], lines)

    def pass_deadlines(self) -> None:
        """Time goes on beyond all deadlines; the order service consumes those that fire."""
        self.advance(TIMEOUT_MS + 7)
        for delivery in self.consume(ORDERS_GROUP, ORDER_TIMEOUTS):
            order_id = json.loads(delivery.message.body)["order_id"]
            timed_out = {"status": "TIMED_OUT", "timed_out_ms": self.now_ms}
            is_placed = (orders.c.order_id == order_id, orders.c.status == "PLACED")
            with self.database.begin() as connection:
                connection.execute(update(orders).where(*is_placed).values(timed_out))

    def push(self, push_id: str, delay_ms: int) -> None:
        due_ms = self.now_ms + delay_ms
        row = {
            "push_id": push_id,
            "customer_id": "c",
            "text": "hello",
            "status": "SCHEDULED",
            "due_ms": due_ms,
        }
        with self.push_database.begin() as connection:
            connection.execute(insert(pushes), row)
        body = {"push_id": push_id, "customer_id": "c", "text": "hello", "due_ms": due_ms}
        self.send(PUSHES, push_id, body, delivery_ms=due_ms)

    def deliver_pushes(self) -> None:
        for delivery in self.consume(PUSHES_GROUP, PUSHES):
            push_id = json.loads(delivery.message.body)["push_id"]
            with self.push_database.begin() as connection:
                delivered = {"status": "DELIVERED", "delivered_ms": self.now_ms}
                connection.execute(update(pushes).where(pushes.c.push_id == push_id).values(delivered))

    def send(self, topic: str, key: str, body: Any, **attributes: Any) -> Any:
        self.numbers += 1
        stored = body if isinstance(body, bytes) else json.dumps(body).encode()
        message = Message(
            topic=topic,
            body=stored,
            message_id=f"{self.numbers:032X}",
            keys=(key,) if key else (),
            **attributes,
        )
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt

    def consume(self, group: str, topic: str) -> list[Delivery]:
        """Receives and acknowledges everything that is there."""
        received: list[Delivery] = []
        while batch := self.broker.receiving.receive(
            group, topic, EVERYTHING, 32, 60_000, "client", False, self.now_ms
        ).deliveries:
            for delivery in batch:
                self.broker.receiving.ack(group, topic, delivery.receipt_handle, self.now_ms)
            received += batch
            self.flush()
        return received

    def advance(self, ms: int) -> None:
        """Lets time pass, and everything happen that is due by then."""
        self.now_ms += ms
        is_going_on = True
        while is_going_on:
            jobs = [one.job for one in self.broker.tick(self.now_ms) if isinstance(one, RunTimersJob)]
            for job in jobs:
                job.run(self.disk)
                self.broker.complete_timers_job(job)
            is_going_on = bool(jobs) or self.broker.end_offset > self.broker.durable_offset or self.is_due
            self.flush()

    @property
    def is_due(self) -> bool:
        """Whether something else is due by now: a tick does a slice of it."""
        due_ms = self.broker.next_due_ms()
        return due_ms is not None and due_ms <= self.now_ms

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def trade(self) -> None:
        """A day without any fault: p1 and p2 are paid, t1 and t2 time out; two pushes."""
        for number, order_id in enumerate(("p1", "p2", "t1", "t2")):
            self.place(order_id, f"customer-{number}", {"apple": 2, f"book-{number}": 1})
            self.advance(1_000)
        self.push("push-1", 500)
        self.push("push-2", 1_500)
        self.clear_carts()
        self.pay("p1")
        self.pay("p2")
        self.pass_deadlines()
        self.deliver_pushes()


@pytest.fixture
def shop(tmp_path: Path, redis_url: str) -> Iterator[Shop]:
    """A shop that has just opened."""
    opened = Shop(tmp_path, redis_url)
    yield opened
    opened.database.dispose()
    opened.push_database.dispose()
    opened.redis.close()
    opened.disk.close()


@pytest.fixture
def traded(shop: Shop) -> Shop:
    """A shop after a day without any fault."""
    shop.trade()
    return shop


@pytest.fixture
def audit(spark: SparkSession, tmp_path: Path) -> Callable[[Shop], AuditSummary]:
    """`audit(shop)` is the audit of its stores, on the tests' Spark."""

    def run(shop: Shop) -> AuditSummary:
        folder, out = tmp_path / "exported", tmp_path / "out"
        for made in (folder, out):
            made.mkdir()
        sources = Sources(shop.store, Inputs(shop.orders_url, shop.redis_url, shop.pushes_url))
        options = AuditOptions("run")
        run = RunFolders(out, options.run_id)
        run.folder.mkdir(parents=True)
        return compare(spark, sources.export(folder), shop.store, run, options, lambda _: None)

    return run
