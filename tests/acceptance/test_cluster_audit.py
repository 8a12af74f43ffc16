"""A shop that trades over a cluster while its leader dies: the audit and `explain` over a node's own store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.published_log import open_log
from services.shop.database import sqlite_url
from services.shop.demo.processes import Processes
from services.shop.demo.settings import Layout
from services.shop.demo.story import create_topic
from services.shop.generated import shop_pb2
from services.shop.redis_server import bundled_redis
from services.shop.topics import TOPIC_TYPES
from tests.acceptance.conftest import Shop
from tests.acceptance.test_cluster import Node, leader_of
from tests.command import tidewheel
from tests.postgresql import running_postgresql

SEGMENT_BYTES = 8 << 20


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with running_postgresql(syncs=True) as database:
        url = database.replace("postgresql+psycopg", "postgresql")
        assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
        both = [Node(tmp_path, name, url) for name in "ab"]
        for node in both:
            node.start()
        yield both
        for node in both:
            node.kill()


def audited(shop: Shop, store: Path) -> Any:
    """What an audit says whose log is a node's store."""
    books = ("--orders", sqlite_url(shop.layout.orders_database), "--carts", shop.redis_url)
    out = ("--out", shop.layout.root / f"audit-{os.urandom(2).hex()}")
    done = tidewheel("audit", "run", "--store", store, *books, *out, "--json")
    print(done)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_x(nodes: list[Node], tmp_path: Path, eventually: Any) -> None:
    layout = Layout(tmp_path / "shop")
    layout.prepare()
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    for name, message_type in TOPIC_TYPES.items():
        create_topic(other.http, name, message_type)
    with bundled_redis(layout.redis) as redis_url, Processes(layout) as processes:
        shop = Shop(layout, processes, redis_url, other.listen, other.http)
        shop.start("orders")
        shop.start("carts")
        shop.add("a1", quantity=9)
        shop.place("O1")
        shop.orders.Pay(shop_pb2.OrderRequest(order_id="O1"))
        shop.place("O2", timeout_ms=4_000)
        shop.place("O3")
        leader.kill()
        shop.place("O4")
        shop.orders.Pay(shop_pb2.OrderRequest(order_id="O4"))
        eventually(lambda: shop.orders.Get(shop_pb2.OrderRequest(order_id="O2")).status == "TIMED_OUT")
        eventually(lambda: shop.cart() == {})
        leader.start()
        eventually(lambda: leader.role() == "following")
        import time

        time.sleep(2)
        for node in nodes:
            log = open_log(node.store)
            print(node.store, node.role(), log.end_offset, node.view())
            print(tidewheel("store", "info", "--store", node.store))
        for node in nodes:
            audited(shop, node.store)
        for node in nodes:
            assert node.stop() == 0
        for node in nodes:
            print(open_log(node.store))
            print(tidewheel("explain", "O2", "--store", node.store).stdout)
            audited(shop, node.store)
    assert 0
