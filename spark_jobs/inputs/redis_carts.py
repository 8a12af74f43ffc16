"""The carts in Redis and their ledgers, read as rows.

    cart:<customer_id>         hash  sku -> quantity
    cart-ledger:<customer_id>  hash  add:<add_id>     -> {"sku", "quantity", "at_ms"}
                                     order:<order_id> -> {"removed": {sku: quantity}, "at_ms"}

A customer's cart and ledger are read in one MULTI, so no change that a running shop makes in one transaction
is read in part. Keys are found by SCAN, which does not block other clients but may return a key twice.
Therefore the customers are first dealt into buckets on disk, by a checksum, and then each bucket is
deduplicated and read. Memory holds the ids of one bucket, up to `CUSTOMERS_PER_BUCKET` keys unless the
database has more than `_BUCKETS_MAX` times as many. A field of another form is reported and left out; so is a
key or field that is not UTF-8, whose bytes are sent back to Redis unchanged.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import RedisKeys
from spark_jobs.inputs.schemas import ADD, ORDER

CUSTOMERS_PER_BUCKET: Final = 20_000

_CUSTOMERS_PER_TURN: Final = 200
_KEYS_PER_SCAN: Final = 1_000
_BUCKETS_MAX: Final = 500
_QUANTITY_MAX: Final = 1 << 53

_BYTES: Final = "surrogateescape"
"""The error handler that keeps bytes that are not UTF-8 in a str; distinct bytes stay distinct."""

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class CartRows:
    """The rows of some customers, and their unreadable fields, as `key field` or `key`."""

    carts: Rows = field(default_factory=list)
    ledger: Rows = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class RedisCarts:
    """A shop's carts in a Redis database."""

    def __init__(self, url: str, keys: RedisKeys) -> None:
        """Connect; raise `DatabaseUnreadable` if the URL is invalid or Redis does not answer."""
        self._keys = keys
        self._shown = url.rpartition("@")[2] if "@" in url else url
        with self._speaking():
            self._redis: Any = Redis.from_url(url, decode_responses=True, encoding_errors=_BYTES)
            self._redis.ping()

    def buckets(self) -> Iterator[Iterator[CartRows]]:
        """Yield the buckets, each as an iterator of rows of up to `_CUSTOMERS_PER_TURN` customers.

        Each customer is in one bucket. Raise `DatabaseUnreadable` if Redis stops answering.
        """
        with self._speaking(), self._redis, ExitStack() as files:
            count = min(1 + self._redis.dbsize() // CUSTOMERS_PER_BUCKET, _BUCKETS_MAX)
            dealt = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
            for customer_id in self._customers():
                dealt[zlib.crc32(customer_id.encode(errors=_BYTES)) % count].write(
                    json.dumps(customer_id) + "\n"
                )
            for bucket in dealt:
                bucket.seek(0)
                yield self._read(sorted({json.loads(line) for line in bucket}))

    def _read(self, customers: list[str]) -> Iterator[CartRows]:
        for first in range(0, len(customers), _CUSTOMERS_PER_TURN):
            yield self._read_turn(customers[first : first + _CUSTOMERS_PER_TURN])

    def _read_turn(self, customers: list[str]) -> CartRows:
        rows, pipeline = CartRows(), self._redis.pipeline(transaction=True)
        for customer_id in customers:
            pipeline.hgetall(self._keys.cart + customer_id)
            pipeline.hgetall(self._keys.ledger + customer_id)
        answers = pipeline.execute(raise_on_error=False)
        for customer_id, cart, ledger in zip(customers, answers[0::2], answers[1::2], strict=True):
            self._add_cart(rows, customer_id, cart)
            self._add_ledger(rows, customer_id, ledger)
        return rows

    def _customers(self) -> Iterator[str]:
        """Yield every customer, some more than once.

        The longer prefix is tried first, since it may begin with the other.
        """
        prefixes = sorted((self._keys.cart, self._keys.ledger), key=len, reverse=True)
        for pattern in {_common(*prefixes)} if _common(*prefixes) else set(prefixes):
            for key in self._redis.scan_iter(match=_escaped(pattern) + "*", count=_KEYS_PER_SCAN):
                prefix = next((one for one in prefixes if key.startswith(one)), None)
                if prefix is not None:
                    yield key.removeprefix(prefix)

    def _add_cart(self, rows: CartRows, customer_id: str, cart: dict[str, str] | ResponseError) -> None:
        key = self._keys.cart + customer_id
        for sku, quantity in _fields(rows, key, cart):
            try:
                rows.carts.append((customer_id, sku, _quantity(quantity)))
            except ValueError:
                rows.unreadable.append(f"{key} {sku}")

    def _add_ledger(self, rows: CartRows, customer_id: str, ledger: dict[str, str] | ResponseError) -> None:
        key = self._keys.ledger + customer_id
        for name, value in _fields(rows, key, ledger):
            entry, _, entry_id = name.partition(":")
            try:
                lines = _lines(entry, json.loads(value))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                rows.unreadable.append(f"{key} {name}")
            else:
                rows.ledger += [(customer_id, entry, entry_id, *line) for line in lines]

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, ValueError) as error:
            raise DatabaseUnreadable(
                f"The carts at {self._shown}: {error}. Correct --carts, or start that Redis."
            ) from error


def _fields(rows: CartRows, key: str, answer: dict[str, str] | ResponseError) -> Iterator[tuple[str, str]]:
    if isinstance(answer, ResponseError) or (answer and not _is_text(key)):
        rows.unreadable.append(_shown(key))
        return
    for name, value in answer.items():
        if _is_text(name):
            yield name, value
        else:
            rows.unreadable.append(_shown(f"{key} {name}"))


def _is_text(found: str) -> bool:
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(found: str) -> str:
    """Return a text with escapes for the bytes that are not UTF-8."""
    return found.encode(errors=_BYTES).decode(errors="backslashreplace")


def _lines(entry: str, value: Any) -> Rows:
    """Return the (sku, quantity, at_ms) rows of one ledger entry; an order without articles has one row."""
    at_ms = int(value["at_ms"])
    if entry == ADD:
        return [(_text(value["sku"]), _quantity(value["quantity"]), at_ms)]
    if entry != ORDER:
        raise ValueError(entry)
    removed = value["removed"] or {}
    found = [(_text(sku), _quantity(quantity), at_ms) for sku, quantity in removed.items()]
    return found or [(None, 0, at_ms)]


def _text(value: Any) -> str:
    """Return a text; raise `UnicodeEncodeError` for a lone surrogate, which JSON may contain."""
    text = str(value)
    text.encode()
    return text


def _quantity(value: Any) -> int:
    quantity = int(value)
    is_cut = isinstance(value, bool) or (isinstance(value, float) and quantity != value)
    if is_cut or abs(quantity) >= _QUANTITY_MAX:
        raise ValueError(value)
    return quantity


def _common(one: str, other: str) -> str:
    """Return the common prefix of two texts."""
    length = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    return one[:length]


def _escaped(text: str) -> str:
    """Return a SCAN pattern that matches a text literally."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)
