"""The carts in Redis, exported to Parquet: what each cart holds, and what its ledger says it should hold.

    cart:<customer_id>         hash  sku -> quantity
    cart-ledger:<customer_id>  hash  add:<add_id>     -> {"sku", "quantity", "at_ms"}
                                     order:<order_id> -> {"removed": {sku: quantity}, "at_ms"}

For every customer and article the cart holds the additions minus the removals. A customer's cart and ledger
are read in one MULTI, so a running shop is seen between two of its changes and never inside one. Keys are
found by SCAN, which blocks nobody.

    carts.parquet    customer_id, sku, quantity
    ledger.parquet   customer_id, entry (add | order), entry_id, sku, quantity, at_ms;
                     an order that removed nothing has one row without article
    differences.parquet   customer_id, sku, cart, ledger: where the two quantities are not the same

A field that is not of this form is counted, and left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from commitlog.errors import DatabaseUnreadable
from spark_jobs.columns import write_parquet

CARTS: Final = pa.schema([("customer_id", pa.string()), ("sku", pa.string()), ("quantity", pa.int64())])
LEDGER: Final = pa.schema([
    ("customer_id", pa.string()),
    ("entry", pa.string()),
    ("entry_id", pa.string()),
    ("sku", pa.string()),
    ("quantity", pa.int64()),
    ("at_ms", pa.int64()),
])  # fmt: skip
DIFFERENCES: Final = pa.schema([
    ("customer_id", pa.string()),
    ("sku", pa.string()),
    ("cart", pa.int64()),
    ("ledger", pa.int64()),
])  # fmt: skip
ADD: Final = "add"
ORDER: Final = "order"

_CART: Final = "cart:"
_LEDGER: Final = "cart-ledger:"
_CUSTOMERS_PER_TURN: Final = 200
_KEYS_PER_SCAN: Final = 1_000

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class _Read:
    """What one turn of reading has given."""

    carts: Rows = field(default_factory=list)
    ledger: Rows = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class Carts:
    """A shop's carts to be read."""

    def __init__(self, url: str) -> None:
        """Connects; raises `DatabaseUnreadable` when nothing answers."""
        self._shown = url.rpartition("@")[2] if "@" in url else url
        try:
            self._redis: Any = Redis.from_url(url, decode_responses=True, encoding_errors="replace")
            self._redis.ping()
        except (RedisError, ValueError) as error:
            raise self._unreadable(error) from error

    def export(self, folder: Path) -> list[str]:
        """Writes the three files below `folder`; returns the fields that could not be read, by key."""
        try:
            read = self._read()
        except RedisError as error:
            raise self._unreadable(error) from error
        finally:
            self._redis.close()
        write_parquet(folder / "carts.parquet", CARTS, read.carts)
        write_parquet(folder / "ledger.parquet", LEDGER, read.ledger)
        carts, ledger = (pq.read_table(folder / name) for name in ("carts.parquet", "ledger.parquet"))
        pq.write_table(differences(carts, ledger), folder / "differences.parquet")
        return read.unreadable

    def _read(self) -> _Read:
        read = _Read()
        customers = sorted(self._customers())
        for first in range(0, len(customers), _CUSTOMERS_PER_TURN):
            turn = customers[first : first + _CUSTOMERS_PER_TURN]
            pipeline = self._redis.pipeline(transaction=True)
            for customer_id in turn:
                pipeline.hgetall(_CART + customer_id)
                pipeline.hgetall(_LEDGER + customer_id)
            answers = pipeline.execute(raise_on_error=False)
            for customer_id, cart, ledger in zip(turn, answers[0::2], answers[1::2], strict=True):
                _read_cart(read, customer_id, cart)
                _read_ledger(read, customer_id, ledger)
        return read

    def _customers(self) -> set[str]:
        found: set[str] = set()
        for key in self._redis.scan_iter(match="cart*", count=_KEYS_PER_SCAN):
            for prefix in (_CART, _LEDGER):
                if key.startswith(prefix):
                    found.add(key.removeprefix(prefix))
        return found

    def _unreadable(self, error: Exception) -> DatabaseUnreadable:
        return DatabaseUnreadable(
            f"The carts at {self._shown}: {error}. Correct --carts, or start that Redis."
        )


def differences(carts: pa.Table, ledger: pa.Table) -> pa.Table:
    """Every customer and article whose cart is not additions minus removals; see the module.

    In memory, as all of it was in Redis's.
    """
    moved = ledger.filter(pc.is_valid(ledger["sku"]))
    sign = pc.if_else(pc.equal(moved["entry"], ADD), 1, -1)
    signed = moved.append_column("signed", pc.multiply(moved["quantity"], sign))
    balances = signed.group_by(["customer_id", "sku"]).aggregate([("signed", "sum")])
    both = carts.join(balances, ["customer_id", "sku"], join_type="full outer")
    cart, balance = pc.fill_null(both["quantity"], 0), pc.fill_null(both["signed_sum"], 0)
    columns = [both["customer_id"], both["sku"], cart, balance]
    compared = pa.table(dict(zip(DIFFERENCES.names, columns, strict=True)), schema=DIFFERENCES)
    return compared.filter(pc.not_equal(cart, balance))


def _read_cart(read: _Read, customer_id: str, cart: dict[str, str] | ResponseError) -> None:
    key = _CART + customer_id
    for sku, quantity in _fields(read, key, cart):
        try:
            read.carts.append((customer_id, sku, _quantity(quantity)))
        except ValueError:
            read.unreadable.append(f"{key} {sku}")


def _read_ledger(read: _Read, customer_id: str, ledger: dict[str, str] | ResponseError) -> None:
    key = _LEDGER + customer_id
    for name, value in _fields(read, key, ledger):
        entry, _, entry_id = name.partition(":")
        try:
            read.ledger += [
                (customer_id, entry, entry_id, *line) for line in _lines(entry, json.loads(value))
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            read.unreadable.append(f"{key} {name}")


def _fields(read: _Read, key: str, answer: dict[str, str] | ResponseError) -> Iterator[tuple[str, str]]:
    if isinstance(answer, ResponseError):
        read.unreadable.append(key)
    else:
        yield from answer.items()


def _lines(entry: str, value: Any) -> Rows:
    """The (sku, quantity, at_ms) rows of one ledger entry."""
    at_ms = int(value["at_ms"])
    if entry == ADD:
        return [(str(value["sku"]), _quantity(value["quantity"]), at_ms)]
    if entry != ORDER:
        raise ValueError(entry)
    removed = value["removed"] or {}
    return [(sku, _quantity(quantity), at_ms) for sku, quantity in removed.items()] or [(None, 0, at_ms)]


def _quantity(value: Any) -> int:
    quantity = int(value)
    if abs(quantity) >= 1 << 53:
        raise ValueError(value)
    return quantity
