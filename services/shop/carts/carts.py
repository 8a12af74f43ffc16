"""Carts in Redis: the lines that a customer has added minus the lines of the customer's orders.

    cart:<customer_id>         hash  sku -> quantity
    cart-ledger:<customer_id>  hash  add:<add_id>     -> {"sku", "quantity", "at_ms"}
                                     order:<order_id> -> {"removed": {sku: quantity}, "at_ms"}

A cart and its ledger are changed together by a Lua script (`cart_add.lua`, `cart_clear.lua`), which Redis
runs atomically. The ledger records which additions and orders have been applied, so a repeated request or
message has no effect. If a customer adds an article again after an order, a redelivery of the order's message
does not remove it.

Invariant (checked by the audit): for every article, the quantity in the cart is the sum of the additions
minus the sum of the removals.

Cost: one round trip, and one small hash field per added line and per order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

from tidewheel.errors import ClientMistake, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.shop.clock import Clock

ROOM = Path(__file__).parent
QUANTITY_MAX = 2**53
"""Lua stores numbers as doubles, which are not exact above this limit."""


@dataclass(slots=True, frozen=True)
class Addition:
    """A line to add to a cart. A line with the same id is added only once."""

    add_id: str
    sku: str
    quantity: int


class Carts:
    """The operations of the cart service on a Redis database."""

    def __init__(self, redis: Redis, clock_ms: Clock) -> None:
        self._redis = redis
        self._clock_ms = clock_ms
        self._add = redis.register_script((ROOM / "cart_add.lua").read_text())
        self._clear = redis.register_script((ROOM / "cart_clear.lua").read_text())

    def add(self, customer_id: str, additions: Iterable[Addition]) -> dict[str, int]:
        """Add lines to a customer's cart and return the cart as sku -> quantity.

        Raises:
            ClientMistake: If a line has no id or SKU, or its quantity is less than one.
        """
        arguments: list[str | int] = [self._clock_ms()]
        for addition in additions:
            refuse_impossible(customer_id, addition)
            arguments += [addition.add_id, addition.sku, addition.quantity]
        flat = self._add(keys=keys_of(customer_id), args=arguments)
        return {flat[at]: int(flat[at + 1]) for at in range(0, len(flat), 2)}

    def get(self, customer_id: str) -> dict[str, int]:
        """Return a customer's cart as sku -> quantity. The cart of an unknown customer is empty."""
        found = self._redis.hgetall(keys_of(customer_id)[0])
        return {str(sku): int(quantity) for sku, quantity in found.items()}

    def clear(self, customer_id: str, order_id: str, lines: Iterable[tuple[str, int]]) -> bool:
        """Remove the (sku, quantity) lines of an order from a cart.

        Returns False if they were removed before.
        """
        flat = [value for line in lines for value in line]
        return bool(self._clear(keys=keys_of(customer_id), args=[self._clock_ms(), order_id, *flat]))


def keys_of(customer_id: str) -> list[str]:
    """Return the keys of a customer's cart and ledger."""
    return [f"cart:{customer_id}", f"cart-ledger:{customer_id}"]


def refuse_impossible(customer_id: str, addition: Addition) -> None:
    """Raise `ClientMistake` for an invalid line."""
    named = customer_id and addition.add_id and addition.sku
    if not (named and 0 < addition.quantity < QUANTITY_MAX):
        raise ClientMistake(
            f"Line {addition.add_id!r} needs a customer, an add_id, a sku and a quantity above zero."
        )


def open_redis(url: str) -> Redis:
    """Connect to a Redis database by URL.

    Raises:
        ConfigurationError: If the URL is invalid or the server does not answer.
    """
    try:
        redis = Redis.from_url(url, decode_responses=True)
        redis.ping()
    except (RedisError, ValueError) as error:
        raise ConfigurationError(f"Redis at {url} does not answer ({error}). Give a redis:// URL.") from error
    return redis
