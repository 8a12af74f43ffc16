"""Orders paid at the very moment of their timeout: each is paid or timed out, never both, and one sees why.

The order service and the broker are processes of their own, on real time. Each order is paid once, at a
random moment around its deadline. What is compared: the answer to the payment, the order's row, what
`tidewheel txn show` says of the payment and of the deadline, and the broker's verdicts on the cancels that
payments carried.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select
from typer.testing import CliRunner

from services.cli.transactions import txn
from services.shop.calls import stub_of
from services.shop.database import open_database, sqlite_url
from services.shop.demo.processes import Processes
from services.shop.demo.settings import Layout
from services.shop.demo.settling import OPEN_HALVES, UNREAD, broker_gauges
from services.shop.demo.story import create_topic
from services.shop.generated import shop_pb2
from services.shop.tables import OrderStatus, orders
from services.shop.topics import ORDER_PAID, ORDER_TIMEOUTS, TOPIC_TYPES

ORDERS_PER_ROUND = 20
WORKERS = 32
TIMEOUT_MS = 2_000
AROUND_MS = 250
SETTLE_SECONDS = 60
CALL_SECONDS = 60


@dataclass
class Shop:
    """A broker and the order service."""

    layout: Layout
    http: str
    stub: Any

    def trade(self, order_id: str, around_ms: int) -> str:
        """Place an order, pay it `around_ms` after its deadline; returns what the payer is told."""
        line = shop_pb2.Line(sku="85123A", quantity=1, unit_price_pence=255)
        request = shop_pb2.PlaceRequest(
            order_id=order_id, customer_id="C1", lines=[line], timeout_ms=TIMEOUT_MS
        )
        due_ms = self.stub.Place(request, timeout=CALL_SECONDS).due_ms
        time.sleep(max(0.0, (due_ms + around_ms) / 1000 - time.time()))
        try:
            return str(self.stub.Pay(shop_pb2.OrderRequest(order_id=order_id), timeout=CALL_SECONDS).status)
        except grpc.RpcError as refusal:
            if refusal.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return str(OrderStatus.TIMED_OUT)

    def rows(self) -> dict[str, Any]:
        """The orders, by id."""
        engine = open_database(sqlite_url(self.layout.orders_database))
        with engine.connect() as connection:
            found = {row.order_id: row for row in connection.execute(select(orders))}
        engine.dispose()
        return found

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        ends = time.monotonic() + SETTLE_SECONDS
        while any(broker_gauges(self.http).get(name, 0) for name in (OPEN_HALVES, *UNREAD)) or any(
            row.status == OrderStatus.PLACED for row in self.rows().values()
        ):
            assert time.monotonic() < ends, "it does not come to rest"
            time.sleep(0.1)

    def show(self, order_id: str, topic: str, *options: str) -> str:
        """What `tidewheel txn show` says."""
        command = ["show", order_id, "--topic", topic, "--http", self.http, *options]
        shown = CliRunner().invoke(txn.app, command)
        assert shown.exit_code == 0, shown.output
        return shown.output

    def only(self, order_id: str, topic: str) -> Any:
        """The only transaction of an order in a topic."""
        (found,) = json.loads(self.show(order_id, topic, "--json"))
        return found

    def verdicts(self) -> Counter[str]:
        """What became of the timers that were to be cancelled."""
        with urlopen(f"http://{self.http}/metrics", timeout=CALL_SECONDS) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples)
        return Counter({
            sample.labels["verdict"]: int(sample.value)
            for sample in samples
            if sample.name == "mq_timer_verdicts_total"
        })  # fmt: skip


@contextmanager
def open_shop(layout: Layout) -> Iterator[Shop]:
    """A shop that takes orders until the block ends."""
    with Processes(layout) as processes:
        serve = ("serve", "--store", str(layout.store), "--http", "127.0.0.1:0")
        broker = processes.start(*serve, name="broker")
        for name, message_type in TOPIC_TYPES.items():
            create_topic(broker["http"], name, message_type)
        service = ("shop", "orders", "--broker", broker["listen"])
        database = ("--database", sqlite_url(layout.orders_database))
        listen = processes.start(*service, *database, name="orders")["listen"]
        with grpc.insecure_channel(listen) as channel:
            yield Shop(layout, broker["http"], stub_of("Orders", channel))
        processes.require_health()


def judge(shop: Shop, row: Any, told: str) -> None:
    """One order: its row, what its payer was told, and what the broker can tell of it, agree."""
    assert row.status == told
    assert (row.paid_ms is None) is not (row.timed_out_ms is None), "paid xor timed out"
    payment, deadline = shop.only(row.order_id, ORDER_PAID), shop.only(row.order_id, ORDER_TIMEOUTS)
    assert (deadline["state"], int(deadline["due_ms"])) == ("COMMITTED", row.due_ms)
    assert deadline["message"]["properties"]["TW_TIMER_KEY"] == f"order:{row.order_id}"
    assert payment["message"]["properties"]["TW_TIMER_CANCEL"] == f"order:{row.order_id}"
    if row.paid_ms is not None:
        assert payment["state"] == "COMMITTED"
    else:
        assert payment["state"] == "ROLLED_BACK"
        assert int(payment["ended_ms"]) >= row.timed_out_ms >= row.due_ms


def test_an_order_is_paid_or_timed_out(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count = ORDERS_PER_ROUND * int(request.config.getoption("--rounds"))
    chance = random.Random(5)
    moments = {f"O{number}": chance.randint(-AROUND_MS, AROUND_MS) for number in range(count)}
    layout = Layout(tmp_path / "shop")
    layout.prepare()
    with open_shop(layout) as shop:
        with ThreadPoolExecutor(WORKERS) as payers:
            told = dict(
                zip(moments, payers.map(shop.trade, *zip(*moments.items(), strict=True)), strict=True)
            )
        shop.settle()
        rows = shop.rows()
        assert rows.keys() == told.keys()
        for order_id, row in rows.items():
            judge(shop, row, told[order_id])
        ends, verdicts = Counter(told.values()), shop.verdicts()
        late = Counter(
            "late" if row.paid_ms > row.due_ms else "in time" for row in rows.values() if row.paid_ms
        )
        print(json.dumps({"orders": count, **ends, "paid": late, "verdicts on the cancels": verdicts}))
        assert len(ends) == 2, "payments do not fall around the deadlines"
        assert verdicts["CANCELLED"] + verdicts["TOO_LATE"] == ends["PAID"]
        for status in (OrderStatus.PAID, OrderStatus.TIMED_OUT):
            one = next(order_id for order_id, row in rows.items() if row.status == status)
            print(shop.show(one, ORDER_TIMEOUTS) + shop.show(one, ORDER_PAID))
