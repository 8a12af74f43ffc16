"""The cart service: the gRPC interface of `carts.py` and the consumer of `order-created`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from services.shop.calls import attach
from services.shop.carts.carts import Addition, Carts, open_redis
from services.shop.carts.faults import FaultyCarts
from services.shop.clock import wall_clock_ms
from services.shop.faults import Fault, Faults
from services.shop.generated import shop_pb2
from services.shop.messaging import JsonListener, open_consumer
from services.shop.serving import answering, serve
from services.shop.topics import CARTS_GROUP, ORDER_CREATED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc

log = structlog.get_logger()


class CartService:
    """The gRPC interface of the carts."""

    def __init__(self, carts: Carts) -> None:
        self._carts = carts

    @answering
    def Add(self, request: shop_pb2.AddRequest, context: grpc.ServicerContext) -> shop_pb2.Cart:  # noqa: N802
        """Add lines to a cart."""
        additions = [Addition(line.add_id, line.sku, line.quantity) for line in request.lines]
        return as_answer(request.customer_id, self._carts.add(request.customer_id, additions))

    @answering
    def Get(self, request: shop_pb2.CartRequest, context: grpc.ServicerContext) -> shop_pb2.Cart:  # noqa: N802
        """Return a cart."""
        return as_answer(request.customer_id, self._carts.get(request.customer_id))


def as_answer(customer_id: str, quantities: dict[str, int]) -> shop_pb2.Cart:
    """Return a cart as a protocol message."""
    return shop_pb2.Cart(customer_id=customer_id, quantities=quantities)


def clear_ordered(carts: Carts, content: dict[str, Any]) -> None:
    """Process an `order-created` message. The ordered lines are removed from the cart exactly once."""
    lines = [(line["sku"], line["quantity"]) for line in content["lines"]]
    cleared = carts.clear(content["customer_id"], content["order_id"], lines)
    log.info("order-created", order_id=content["order_id"], effect="cleared" if cleared else "repeated")


@contextlib.contextmanager
def open_carts(broker: str, redis_url: str, faults: Faults) -> Iterator[Carts]:
    """Yield the carts in a Redis database and consume orders until the block ends."""
    redis = open_redis(redis_url)
    carts = FaultyCarts(redis, wall_clock_ms, faults)

    def handle(content: dict[str, Any]) -> None:
        if not faults.strikes(Fault.ACK_WITHOUT_CLEARING, content["order_id"]):
            clear_ordered(carts, content)
        faults.die_if_struck(Fault.DIE_BEFORE_ACK, content["order_id"])

    listener = JsonListener(handle)
    with open_consumer(broker, CARTS_GROUP, ORDER_CREATED, listener):
        yield carts
    redis.close()


def run(broker: str, redis_url: str, listen: str, ready_file: Path | None) -> None:
    """Run the cart service until SIGTERM or SIGINT."""
    with open_carts(broker, redis_url, Faults.from_environment()) as carts:
        service = CartService(carts)
        serve(lambda server: attach("Carts", service, server), listen, ready_file)
