"""Carts against their ledger, and Redis contents of any shape; on a real redis-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from commitlog.errors import DatabaseUnreadable
from services.shop.carts import Addition
from services.shop.carts import Carts as ShopCarts
from services.shop.redis_server import bundled_redis
from spark_jobs.carts import CARTS, LEDGER, Carts, differences


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bundled_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushdb()
        yield client


def exported(redis_url: str, folder: Path) -> tuple[dict[str, list[dict[str, object]]], list[str]]:
    unreadable = Carts(redis_url).export(folder)
    names = ("carts", "ledger", "differences")
    return {name: pq.read_table(folder / f"{name}.parquet").to_pylist() for name in names}, unreadable


def test_what_the_cart_service_writes_is_read(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    shop = ShopCarts(redis, lambda: 7)
    shop.add("c", [Addition("a1", "apple", 3), Addition("a2", "pear", 1)])
    shop.clear("c", "o1", [("apple", 2), ("pear", 5)])
    shop.clear("c", "o2", [("plum", 1)])
    tables, unreadable = exported(redis_url, tmp_path)
    assert tables["carts"] == [{"customer_id": "c", "sku": "apple", "quantity": 1}]
    ledger = {(row["entry"], row["entry_id"], row["sku"], row["quantity"]) for row in tables["ledger"]}
    assert ledger == {
        ("add", "a1", "apple", 3),
        ("add", "a2", "pear", 1),
        ("order", "o1", "apple", 2),
        ("order", "o1", "pear", 1),
        ("order", "o2", None, 0),
    }
    assert tables["differences"] == []
    assert unreadable == []


def test_more_customers_than_one_turn_holds(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    for number in range(450):
        redis.hset(f"cart:customer-{number}", "apple", number + 1)
    tables, _ = exported(redis_url, tmp_path)
    assert sorted(row["cart"] for row in tables["differences"]) == list(range(1, 451))  # type: ignore[type-var]


def test_an_empty_redis_has_no_carts(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    assert exported(redis_url, tmp_path) == ({"carts": [], "ledger": [], "differences": []}, [])


def test_fields_of_another_form_are_named_and_left_out(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    redis.set("cart:string", "x")
    redis.set("cartoon", "not ours")
    redis.hset("cart:c", mapping={"apple": "many", "pear": "2", "plum": "9" * 40})
    ledger = {"add:1": "[]", "add:2": "{", "order:3": '{"removed": 5, "at_ms": 1}', "other:4": '{"at_ms": 1}'}
    redis.hset("cart-ledger:c", mapping=ledger)
    tables, unreadable = exported(redis_url, tmp_path)
    assert [row["sku"] for row in tables["carts"]] == ["pear"]
    expected = ["cart:string", "cart:c apple", "cart:c plum", *(f"cart-ledger:c {name}" for name in ledger)]
    assert sorted(unreadable) == sorted(expected)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "http://127.0.0.1/", "nonsense"])
def test_carts_that_cannot_be_reached_are_named_in_one_sentence(url: str) -> None:
    with pytest.raises(DatabaseUnreadable, match="Correct --carts"):
        Carts(url)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(DatabaseUnreadable) as raised:
        Carts("redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in str(raised.value)


few = st.sampled_from(["a", "b", "c"])
entries = st.tuples(
    few, st.sampled_from(["add", "order"]), few, few | st.none(), st.integers(0, 9), st.just(1)
)


@given(st.dictionaries(st.tuples(few, few), st.integers(0, 9)), st.lists(entries, max_size=12))
def test_differences_agree_with_plain_counting(
    held: dict[tuple[str, str], int], ledger: list[tuple[str, str, str, str | None, int, int]]
) -> None:
    expected: dict[tuple[str, str], list[int]] = {key: [count, 0] for key, count in held.items()}
    for customer, entry, _, sku, quantity, _ in ledger:
        if sku is not None:
            expected.setdefault((customer, sku), [0, 0])[1] += quantity if entry == "add" else -quantity
    carts = pa.Table.from_pylist(
        [{"customer_id": customer, "sku": sku, "quantity": count} for (customer, sku), count in held.items()],
        CARTS,
    )
    rows = pa.Table.from_pylist([dict(zip(LEDGER.names, row, strict=True)) for row in ledger], LEDGER)
    found = {
        (row["customer_id"], row["sku"]): [row["cart"], row["ledger"]]
        for row in differences(carts, rows).to_pylist()
    }
    assert found == {key: both for key, both in expected.items() if both[0] != both[1]}
