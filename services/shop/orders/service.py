"""The order service: the gRPC interface of `orders.py` and the consumer of the deadlines.

The process has one producer, which also answers check-backs through the barrier, and one push consumer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import sessionmaker

from services.shop.calls import attach
from services.shop.clock import wall_clock_ms
from services.shop.database import open_database
from services.shop.faults import Faults
from services.shop.generated import shop_pb2
from services.shop.messaging import JsonListener, open_consumer, open_producer
from services.shop.orders.faults import FaultyOrders, watch_calls
from services.shop.orders.new_order import Line, NewOrder
from services.shop.orders.orders import Orders
from services.shop.serving import answering, serve
from services.shop.tables import order_metadata
from services.shop.topics import ORDER_TIMEOUTS, ORDER_TOPICS, ORDERS_GROUP
from tidewheel.barrier import Barrier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc
    from sqlalchemy import Row


class OrderService:
    """The gRPC interface of the orders."""

    def __init__(self, orders: Orders, timeout_ms: int) -> None:
        self._orders = orders
        self._timeout_ms = timeout_ms

    @answering
    def Place(self, request: shop_pb2.PlaceRequest, context: grpc.ServicerContext) -> shop_pb2.Order:  # noqa: N802
        """Place an order."""
        return as_answer(self._orders.place(as_new_order(request, self._timeout_ms)))

    @answering
    def Pay(self, request: shop_pb2.OrderRequest, context: grpc.ServicerContext) -> shop_pb2.Order:  # noqa: N802
        """Pay an order."""
        return as_answer(self._orders.pay(request.order_id))

    @answering
    def Cancel(self, request: shop_pb2.OrderRequest, context: grpc.ServicerContext) -> shop_pb2.Order:  # noqa: N802
        """Cancel an order."""
        return as_answer(self._orders.cancel(request.order_id))

    @answering
    def Get(self, request: shop_pb2.OrderRequest, context: grpc.ServicerContext) -> shop_pb2.Order:  # noqa: N802
        """Return an order."""
        return as_answer(self._orders.get(request.order_id))


def as_new_order(request: shop_pb2.PlaceRequest, timeout_ms: int) -> NewOrder:
    """Return the request as a `NewOrder`.

    Without a timeout in the request, the default of the service applies.
    """
    lines = tuple(Line(line.sku, line.quantity, line.unit_price_pence) for line in request.lines)
    return NewOrder(request.order_id, request.customer_id, lines, request.timeout_ms or timeout_ms)


def as_answer(row: Row[Any]) -> shop_pb2.Order:
    """Return an order's row as a protocol message."""
    return shop_pb2.Order(
        order_id=row.order_id,
        customer_id=row.customer_id,
        status=row.status,
        total_pence=row.total_pence,
        placed_ms=row.placed_ms,
        due_ms=row.due_ms,
    )


@contextlib.contextmanager
def open_orders(broker: str, database: str, faults: Faults) -> Iterator[Orders]:
    """Yield the orders of a database and a broker and consume deadlines until the block ends."""
    engine = open_database(database, order_metadata)
    barrier = Barrier(sessionmaker(engine))
    barrier.create_table()
    with open_producer(broker, list(ORDER_TOPICS), barrier) as producer:
        orders = FaultyOrders(engine, barrier, producer, wall_clock_ms, faults)
        watch_calls(producer, faults)
        deadlines = JsonListener(lambda content: orders.time_out(content["order_id"], content["due_ms"]))
        with open_consumer(broker, ORDERS_GROUP, ORDER_TIMEOUTS, deadlines):
            yield orders
    engine.dispose()


def run(broker: str, database: str, listen: str, timeout_ms: int, ready_file: Path | None) -> None:
    """Run the order service until SIGTERM or SIGINT."""
    with open_orders(broker, database, Faults.from_environment()) as orders:
        service = OrderService(orders, timeout_ms)
        serve(lambda server: attach("Orders", service, server), listen, ready_file)
