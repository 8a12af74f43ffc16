"""Carts on a real redis-server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.shop.carts.carts import Addition, Carts, open_redis
from tidewheel.errors import ClientMistake, ConfigurationError

if TYPE_CHECKING:
    from redis import Redis

SKUS = st.sampled_from(["85123A", "22423", "POST"])
ADDING = st.tuples(st.just("add"), st.integers(0, 5), SKUS, st.integers(1, 9))
ORDERING = st.tuples(st.just("order"), st.integers(0, 5), SKUS, st.integers(1, 9))


@pytest.fixture
def carts(redis: Redis) -> Carts:
    return Carts(redis, clock_ms=lambda: 1_763_717_437_123)


def ledger(redis: Redis, customer_id: str) -> dict[str, Any]:
    entries = redis.hgetall(f"cart-ledger:{customer_id}")
    return {str(field): json.loads(entry) for field, entry in entries.items()}


def balance(redis: Redis, customer_id: str) -> dict[str, int]:
    """What the ledger says the cart should hold."""
    sums: dict[str, int] = {}
    for entry in ledger(redis, customer_id).values():
        changes = {entry["sku"]: entry["quantity"]} if "sku" in entry else entry["removed"]
        sign = 1 if "sku" in entry else -1
        for sku, quantity in dict(changes).items():
            sums[sku] = sums.get(sku, 0) + sign * quantity
    return {sku: quantity for sku, quantity in sums.items() if quantity}


def test_adding_fills_the_cart_and_the_ledger(carts: Carts, redis: Redis) -> None:
    cart = carts.add(
        "C1", [Addition("a1", "85123A", 6), Addition("a2", "22423", 1), Addition("a3", "22423", 1)]
    )
    assert cart == carts.get("C1") == {"85123A": 6, "22423": 2}
    assert ledger(redis, "C1")["add:a1"] == {"sku": "85123A", "quantity": 6, "at_ms": 1_763_717_437_123}


def test_a_repeated_addition_counts_once(carts: Carts) -> None:
    for _ in range(2):
        carts.add("C1", [Addition("a1", "85123A", 6)])
    assert carts.get("C1") == {"85123A": 6}


def test_an_order_leaves_what_it_did_not_order(carts: Carts, redis: Redis) -> None:
    carts.add("C1", [Addition("a1", "85123A", 6), Addition("a2", "22423", 2)])
    assert carts.clear("C1", "O1", [("85123A", 6), ("22423", 1)])
    assert carts.get("C1") == {"22423": 1}
    assert ledger(redis, "C1")["order:O1"]["removed"] == {"85123A": 6, "22423": 1}


def test_a_customer_who_adds_again_keeps_it_when_the_message_repeats(carts: Carts) -> None:
    carts.add("C1", [Addition("a1", "85123A", 6)])
    assert carts.clear("C1", "O1", [("85123A", 6)])
    carts.add("C1", [Addition("a2", "85123A", 4)])
    assert not carts.clear("C1", "O1", [("85123A", 6)])
    assert carts.get("C1") == {"85123A": 4}


def test_no_more_is_taken_than_is_there(carts: Carts, redis: Redis) -> None:
    carts.add("C1", [Addition("a1", "85123A", 2)])
    carts.clear("C1", "O1", [("85123A", 6), ("22423", 1)])
    assert carts.get("C1") == {}
    assert ledger(redis, "C1")["order:O1"]["removed"] == {"85123A": 2}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(ADDING, ORDERING)))
def test_cart_and_ledger_always_agree(
    carts: Carts, redis: Redis, steps: list[tuple[str, int, str, int]]
) -> None:
    redis.flushdb()
    for verb, number, sku, quantity in steps:
        if verb == "add":
            carts.add("C1", [Addition(f"a{number}", sku, quantity)])
        else:
            carts.clear("C1", f"O{number}", [(sku, quantity)])
    assert carts.get("C1") == balance(redis, "C1")


@pytest.mark.parametrize(
    ("customer_id", "addition"),
    [
        ("", Addition("a1", "85123A", 1)),
        ("C1", Addition("", "85123A", 1)),
        ("C1", Addition("a1", "", 1)),
        ("C1", Addition("a1", "85123A", 0)),
        ("C1", Addition("a1", "85123A", 2**53)),
    ],
)
def test_a_line_that_cannot_be_counted_is_refused(carts: Carts, customer_id: str, addition: Addition) -> None:
    with pytest.raises(ClientMistake, match="quantity above zero"):
        carts.add(customer_id, [addition])


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense"])
def test_a_redis_that_does_not_answer_is_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="does not answer"):
        open_redis(url)
