"""A shop that trades over a cluster while its leader dies: the audit and `explain` over each node's store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.log.published_log import open_log
from services.shop.carts.redis_server import bundled_redis
from services.shop.database import sqlite_url
from services.shop.demo.processes import Processes
from services.shop.demo.settings import Layout
from services.shop.demo.story import create_topic
from services.shop.generated import shop_pb2
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


def order(order_id: str) -> shop_pb2.OrderRequest:
    return shop_pb2.OrderRequest(order_id=order_id)


def trade(shop: Shop, leader: Node, eventually: Any) -> None:
    """Two orders are paid, one times out, one waits; the leader is killed while both deadlines wait."""
    for name in ("orders", "carts"):
        shop.start(name)
    shop.add("a1", quantity=12)
    shop.place("O1")
    shop.orders.Pay(order("O1"))
    shop.place("O2", timeout_ms=4_000)
    shop.place("O3")
    leader.kill()
    shop.place("O4")
    shop.orders.Pay(order("O4"))
    eventually(lambda: shop.orders.Get(order("O2")).status == "TIMED_OUT")
    eventually(lambda: shop.cart() == {})


def audited(shop: Shop, store: Path) -> Any:
    """What an audit says whose log is a node's store."""
    books = ("--orders", sqlite_url(shop.layout.orders_database), "--carts", shop.redis_url)
    done = tidewheel("audit", "run", "--store", store, *books, "--out", shop.layout.audit, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def explained(name: str, *where: object) -> dict[str, set[int]]:
    """What happened, of whatever topic, and in which epochs."""
    done = tidewheel("explain", name, *where, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, set[int]] = {}
    for one in json.loads(done.stdout)["events"]:
        found.setdefault(one["what"], set()).add(one["epoch"])
    return found


def stored(node: Node) -> bytes:
    """All that a reader of a node's store believes."""
    log = open_log(node.store)
    return b"".join(Path(one.path).read_bytes()[: log.end_offset - one.first_offset] for one in log.segments)


def test_any_nodes_store_tells_the_same_and_of_which_epochs(
    nodes: list[Node], tmp_path: Path, eventually: Any
) -> None:
    layout = Layout(tmp_path / "shop")
    layout.prepare()
    killed = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not killed)
    for name, message_type in TOPIC_TYPES.items():
        create_topic(other.http, name, message_type)
    with bundled_redis(layout.redis) as redis_url, Processes(layout) as processes:
        shop = Shop(layout, processes, redis_url, other.listen, other.http)
        trade(shop, killed, eventually)
        killed.start()
        eventually(lambda: killed.role() == "following" and killed.view()["end_offset"])
        eventually(lambda: stored(killed) == stored(other))

        timed_out = {"half": {1}, "committed": {1}, "armed": {1}, "acknowledged": {2}, "delivered": {2}}
        for where in (("--http", other.http), ("--store", other.store), ("--store", killed.store)):
            assert explained("O2", *where) == timed_out
            assert set().union(*explained("O4", *where).values()) == {2}
        shown = tidewheel("explain", "O1", "--store", killed.store).stdout
        assert f"  epoch 1 by {killed.store.name}  order-timeouts" in shown

        summary = audited(shop, killed.store)
        cases = {case: count for case, count in summary["cases"].items() if count}
        assert (summary["balanced"], cases) == (True, {"balanced": 3, "in-flight": 1})
        led = [(one["number"], one["node"]) for one in summary["epochs"]]
        assert led == [(1, killed.store.name), (2, other.store.name)]
        assert "The log covers epochs 1 to 2; epoch 1 began" in Path(summary["report"]).read_text()
    for node in nodes:
        assert node.stop() == 0
    assert stored(killed) == stored(other), "a node that has stopped tells no less"
