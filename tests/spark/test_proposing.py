"""What is proposed for a shop that has really traded: the names that it has, its own or somebody else's."""

from __future__ import annotations

from typing import Any

from spark_jobs.inputs.mapping import SHOP, Mapping, as_mapping
from spark_jobs.proposing.log_facts import read
from spark_jobs.proposing.orders import keys_to_look_for
from spark_jobs.proposing.propose import propose
from spark_jobs.proposing.tables import look
from tests.spark.own_shop import own_tables

Shop = Any


def proposed(shop: Shop, url: str) -> Mapping:
    log = read(shop.store)
    proposal = propose(look(url, "--db", keys_to_look_for(log.topics)).tables, log)
    assert proposal.is_auditable, proposal.doubts
    return as_mapping(proposal.document(), "proposal")


def test_a_shop_is_proposed_its_own_names(traded: Shop) -> None:
    found = proposed(traded, traded.orders_url)
    assert (found.orders.name, found.orders.columns) == (SHOP.orders.name, SHOP.orders.columns)
    assert (found.order_lines.name, found.order_lines.columns) == ("order_lines", SHOP.order_lines.columns)
    assert found.topics.order_created == SHOP.topics.order_created
    assert found.topics.order_timeouts == SHOP.topics.order_timeouts
    assert found.topics.order_paid == SHOP.topics.order_paid
    assert found.groups.order_created == SHOP.groups.order_created
    assert found.timers == SHOP.timers
    assert (found.bodies.order_id, found.bodies.customer_id) == ("order_id", "customer_id")
    assert (found.bodies.lines, found.bodies.sku, found.bodies.quantity) == ("lines", "sku", "quantity")


def test_a_shop_with_tables_of_its_own_is_proposed_their_names(traded: Shop) -> None:
    url, mapping = own_tables(traded)
    found = proposed(traded, url)
    assert found.orders.name == mapping.orders.name
    assert found.orders.columns == mapping.orders.columns
    theirs = mapping.orders.constants["status"]
    assert found.orders.constants["status"].items() <= theirs.items()
    assert (found.order_lines.name, found.order_lines.columns) == (
        mapping.order_lines.name,
        mapping.order_lines.columns,
    )


def test_of_a_long_log_the_newest_part_is_read(traded: Shop) -> None:
    whole, part = read(traded.store), read(traded.store, bytes_max=6_000)
    assert whole.is_whole
    assert not part.is_whole
    assert 0 < part.records < whole.records
    assert part.last_ms == whole.last_ms
    assert {one.name for one in part.topics} <= {one.name for one in whole.topics}
