"""Carts against their ledger, and Redis contents of any shape; on a real redis-server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from sqlalchemy import create_engine, text

from services.shop.carts.carts import Addition
from services.shop.carts.carts import Carts as ShopCarts
from services.shop.carts.redis_server import bundled_redis
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs import carts, key_ranges, redis_carts
from spark_jobs.inputs.carts import differences, open_carts
from spark_jobs.inputs.mapping import SHOP, Mapping, as_mapping
from spark_jobs.inputs.schemas import CARTS, LEDGER


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bundled_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushdb()
        yield client


def exported(
    url: str, folder: Path, mapping: Mapping = SHOP
) -> tuple[dict[str, list[dict[str, object]]], list[str]]:
    unreadable = open_carts(url, mapping)(folder)
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


def test_more_customers_than_one_turn_or_bucket_holds(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_carts, "CUSTOMERS_PER_BUCKET", 100)
    for number in range(450):
        redis.hset(f"cart:customer-{number}", "apple", number + 1)
    tables, _ = exported(redis_url, tmp_path)
    assert sorted(row["cart"] for row in tables["differences"]) == list(range(1, 451))  # type: ignore[type-var]


def test_an_empty_redis_has_no_carts(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    assert exported(redis_url, tmp_path) == ({"carts": [], "ledger": [], "differences": []}, [])


@pytest.mark.parametrize(
    "written",
    [
        '{"removed": {"apple": 1.5}, "at_ms": 7}',
        '{"removed": {"apple": 1e999}, "at_ms": 7}',
        '{"removed": {"apple": true}, "at_ms": 7}',
        '{"removed": {"apple": 1}, "at_ms": Infinity}',
        '{"removed": {"\\ud83d": 1}, "at_ms": 7}',
        "[" * 100_000,
    ],
    ids=["part", "too large", "true", "infinity", "half a character", "too deep"],
)
def test_entries_that_a_table_would_refuse_are_named_and_left_out(
    redis: Redis, redis_url: str, tmp_path: Path, written: str
) -> None:
    """1.5 of an article, and true, were read as 1; the others ended the audit."""
    redis.hset("cart-ledger:c", "order:o1", written)
    tables, unreadable = exported(redis_url, tmp_path)
    assert (tables["ledger"], unreadable) == ([], ["cart-ledger:c order:o1"])


@pytest.mark.parametrize("written", ["2", "2.0", '"2"'])
def test_a_whole_number_is_one_however_it_is_written(
    redis: Redis, redis_url: str, tmp_path: Path, written: str
) -> None:
    redis.hset("cart-ledger:c", "order:o1", f'{{"removed": {{"apple": {written}}}, "at_ms": 7}}')
    tables, unreadable = exported(redis_url, tmp_path)
    assert ([row["quantity"] for row in tables["ledger"]], unreadable) == ([2], [])


def test_bytes_that_are_no_text_are_named_and_left_out(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """Replaced by U+FFFD, two keys would be one article, and the key of a cart would name no customer."""
    redis.hset(b"cart:M\xfcller", mapping={"pear": "1"})
    redis.hset("cart:c", mapping={b"\xfc": "1", b"\xf6": "2", "pear": "3"})
    value = b'{"sku": "p\xfcar", "quantity": 3, "at_ms": 1}'
    redis.hset("cart-ledger:c", mapping={b"add:\xfc": b"{}", "add:1": value})
    unreadable = open_carts(redis_url)(tmp_path)
    assert sorted(unreadable) == [
        r"cart-ledger:c add:1",
        r"cart-ledger:c add:\xfc",
        r"cart:M\xfcller",
        r"cart:c \xf6",
        r"cart:c \xfc",
    ]
    assert pq.read_table(tmp_path / "carts.parquet").to_pylist() == [
        {"customer_id": "c", "sku": "pear", "quantity": 3}
    ]


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


SOUND = {
    "add": {"sku": "apple", "quantity": 1, "at_ms": 1},
    "order": {"removed": {"apple": 1}, "at_ms": 1},
}
BEYOND = [str(1 << 53), str(-(1 << 53)), "9" * 40]
"""Quantities that Parquet, or whoever reads it as floats, would not keep."""
MOST = (1 << 53) - 1


def with_one_fault() -> Iterator[tuple[str, object]]:
    """Entries of a ledger that are sound but for one thing."""
    for kind, entry in SOUND.items():
        yield f"{kind}s:1", entry
        yield kind.upper() + ":1", entry
        for name in entry:
            yield f"{kind}:no {name}", {key: value for key, value in entry.items() if key != name}
        yield f"{kind}:at", entry | {"at_ms": "then"}
    for quantity in ["many", None, [], *BEYOND]:
        yield f"add:{quantity}", SOUND["add"] | {"quantity": quantity}
        yield f"order:{quantity}", SOUND["order"] | {"removed": {"pear": 1, "apple": quantity}}
    yield "order:list", SOUND["order"] | {"removed": ["apple"]}


def test_one_fault_of_an_entry_or_a_quantity_is_enough_for_it_to_be_left_out(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    """And the sound ones beside it are read, up to the largest quantities."""
    wrong = dict(with_one_fault())
    assert len(wrong) == 2 * (2 + 1) + 3 + 2 + 2 * 6 + 1
    for name, entry in (wrong | {"add:sound": SOUND["add"], "order:sound": SOUND["order"]}).items():
        redis.hset("cart-ledger:c", name, json.dumps(entry))
    redis.hset("cart:c", mapping={f"sku {quantity}": quantity for quantity in BEYOND})
    redis.hset("cart:c", mapping={"most": str(MOST), "least": str(-MOST)})
    tables, unreadable = exported(redis_url, tmp_path)
    ledger = sorted((row["entry"], row["entry_id"], row["sku"]) for row in tables["ledger"])
    assert ledger == [("add", "sound", "apple"), ("order", "sound", "apple")]
    assert {row["sku"]: row["quantity"] for row in tables["carts"]} == {"most": MOST, "least": -MOST}
    expected = [f"cart:c sku {quantity}" for quantity in BEYOND] + [f"cart-ledger:c {name}" for name in wrong]
    assert sorted(unreadable) == sorted(expected)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "http://127.0.0.1/", "nonsense"])
def test_carts_that_cannot_be_reached_are_named_in_one_sentence(url: str) -> None:
    with pytest.raises(DatabaseUnreadable, match="Correct --carts"):
        open_carts(url)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(DatabaseUnreadable) as raised:
        open_carts("redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in str(raised.value)


def test_keys_of_another_name(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    mapping = as_mapping({"redis": {"cart": "[basket]", "ledger": "moves:"}}, "names.toml")
    redis.hset("[basket]c", "apple", 2)
    redis.hset("moves:c", "add:1", '{"sku": "apple", "quantity": 3, "at_ms": 1}')
    redis.hset("cart:c", "apple", 9)
    tables, _ = exported(redis_url, tmp_path, mapping)
    assert tables["differences"] == [{"customer_id": "c", "sku": "apple", "cart": 2, "ledger": 3}]


CART_ROWS = ("c1 apple 2", "c2 pear 1", "c3 plum 4", "c3 plum 1")
LEDGER_ROWS = (
    "c1 add a1 apple 3 1795219200001",
    "c1 order o1 apple 1 1795219200002",
    "c2 add a2 pear 2 1795219200001",
    "c3 add a3 plum 5 1795219200001",
    "c4 add a4 fig 1 1795219200001",
    "c4 gift a5 fig 1 1795219200001",
)
DIFFERENT = [
    {"customer_id": "c2", "sku": "pear", "cart": 1, "ledger": 2},
    {"customer_id": "c4", "sku": "fig", "cart": 0, "ledger": 1},
]


@pytest.fixture
def carts_database(tmp_path: Path) -> str:
    """Carts and their ledger in tables; customer c2's cart holds too little, c4's nothing."""
    url = f"sqlite:///{tmp_path / 'carts.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE carts (customer_id TEXT, sku TEXT, quantity INTEGER)"))
        connection.execute(
            text("CREATE TABLE moves (customer_id TEXT, entry, entry_id, sku, quantity, at_ms)")
        )
        for row in CART_ROWS:
            customer, sku, quantity = row.split()
            connection.execute(text(f"INSERT INTO carts VALUES ('{customer}', '{sku}', {quantity})"))
        for row in LEDGER_ROWS:
            customer, entry, entry_id, sku, quantity, at_ms = row.split()
            values = f"'{customer}', '{entry}', '{entry_id}', '{sku}', {quantity}, {at_ms}"
            connection.execute(text(f"INSERT INTO moves VALUES ({values})"))
    engine.dispose()
    return url


MOVES = as_mapping({"ledger": {"table": "moves"}}, "names.toml")


def by_customer(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["customer_id"]))


@pytest.mark.parametrize("rows_per_range", [1, 3, 100])
def test_carts_in_a_database(
    carts_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_range: int
) -> None:
    monkeypatch.setattr(key_ranges, "ROWS_PER_RANGE", rows_per_range)
    tables, unreadable = exported(carts_database, tmp_path, MOVES)
    assert by_customer(tables["differences"]) == DIFFERENT
    assert len(tables["carts"]) == len(CART_ROWS)
    assert len(tables["ledger"]) == len(LEDGER_ROWS)
    assert unreadable == ["ledger of c4: entry gift a5"]


@pytest.mark.parametrize("rows_per_bucket", [1, 100])
@pytest.mark.parametrize("has_differences", [True, False])
def test_carts_of_an_earlier_export(
    carts_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows_per_bucket: int,
    has_differences: bool,
) -> None:
    monkeypatch.setattr(carts, "_ROWS_PER_BUCKET", rows_per_bucket)
    earlier, folder = tmp_path / "earlier", tmp_path / "folder"
    folder.mkdir()
    before, _ = exported(carts_database, earlier, MOVES)
    if not has_differences:
        shutil.rmtree(earlier / "differences.parquet")
    source = {path: path.read_bytes() for path in earlier.rglob("*.parquet") if path.is_file()}
    monkeypatch.setattr(carts, "_ROWS_PER_BUCKET", 1)  # other parts than those that are there
    tables, unreadable = exported(f"parquet:{earlier}", folder)
    assert {name: by_customer(rows) for name, rows in tables.items()} == {
        name: by_customer(rows) for name, rows in before.items()
    }
    assert unreadable == []
    assert {path: path.read_bytes() for path in earlier.rglob("*.parquet") if path.is_file()} == source


@given(st.lists(st.integers(0, 4), max_size=6))
def test_only_so_many_unreadable_fields_are_named(counts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carts, "UNREADABLE_MAX", 5)
        named: list[str] = []
        every = [[f"{number}.{place}" for place in range(count)] for number, count in enumerate(counts)]
        for more in every:
            carts._note(named, more)
    whole = [one for more in every for one in more]
    assert named == (whole if len(whole) <= 5 else [*whole[:5], "and more"])


def test_a_folder_that_has_no_carts_is_told(tmp_path: Path) -> None:
    url = f"parquet:{tmp_path}"
    with pytest.raises(DatabaseUnreadable, match=r"There is no .*carts\.parquet"):
        open_carts(url)
    (tmp_path / "carts.parquet").write_text("carts")
    with pytest.raises(DatabaseUnreadable, match="is no Parquet file"):
        open_carts(url)
    pq.write_table(pa.table({"customer_id": ["c"], "sku": ["s"]}), tmp_path / "carts.parquet")
    with pytest.raises(DatabaseUnreadable, match=r"has no column 'quantity' .there are customer_id, sku"):
        open_carts(url)
    pq.write_table(
        pa.table({"customer_id": ["c"], "sku": ["s"], "quantity": ["many"]}), tmp_path / "carts.parquet"
    )
    with pytest.raises(DatabaseUnreadable, match=r"Column 'quantity' .* is string. Write it as int64"):
        open_carts(url)


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
    in_carts = pa.Table.from_pylist(
        [{"customer_id": customer, "sku": sku, "quantity": count} for (customer, sku), count in held.items()],
        CARTS,
    )
    rows = pa.Table.from_pylist([dict(zip(LEDGER.names, row, strict=True)) for row in ledger], LEDGER)
    found = {
        (row["customer_id"], row["sku"]): [row["cart"], row["ledger"]]
        for row in differences(in_carts, rows).to_pylist()
    }
    assert found == {key: both for key, both in expected.items() if both[0] != both[1]}
