"""The sequence of bugs that `--bugs` injects.

First the bugs of running services are injected. Then the broker is stopped for some time, the cart service is
stopped permanently, and the order service crashes. Finally a push advances the log beyond all limits, so that
everything still pending is overdue.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from sqlalchemy import func, select

from services.shop.calls import channel_to, stub_of
from services.shop.clock import next_full_second_ms, wall_clock_ms
from services.shop.demo import bugs
from services.shop.demo.books import values
from services.shop.demo.reminders import push_request
from services.shop.faults import write_down
from services.shop.generated import shop_pb2
from services.shop.tables import PushStatus, orders, pushes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Engine

    from services.shop.demo.processes import Processes
    from services.shop.demo.replay import Caller

PAID_IN_TIME_MS = 6_000
"""The payment timeout of orders that are paid in time or become due while the broker is stopped."""
NEVER_MS = 3_600_000
PUSH_AGE_MS = 2_000
"""The age of a push that is marked as delivered without a message."""
CLOSING = "closing-time"
PATIENCE_S = 90
POLL_S = 0.1
CALL_TIMEOUT_S = 20

PAYING = ("order-without-message", "outcome-contradicts-database", "effect-twice", "cart-not-cleared")
UNPAID = ("message-without-order",)
POISONED = "dead-lettered"
TIMED_OUT = "paid-but-timed-out"
LATE = "fired-late"
UNREAD = "never-delivered"
HALF = "half-unresolved"
PUSHED = "pushes-do-not-sum"


@dataclass(slots=True)
class BugStory:
    """The bugs of a run."""

    cases: tuple[str, ...]
    processes: Processes
    caller: Caller
    addresses: dict[str, str]
    fault_log: Path

    def while_all_is_well(self) -> None:
        """Place the orders that are affected by a bug of a service."""
        for case in (*PAYING, POISONED, *UNPAID):
            for order_id in self._subjects(case):
                self._place(order_id, NEVER_MS, pays=case not in UNPAID)
        for order_id in self._subjects(TIMED_OUT):
            self._place(order_id, PAID_IN_TIME_MS, pays=True)
        for push_id in self._subjects(PUSHED):
            self._push(push_id, wall_clock_ms() - PUSH_AGE_MS)

    def await_timeouts(self, engine: Engine) -> None:
        """Wait until the deadlines of paid orders have fired."""
        self._await_timed_out(engine, self._subjects(TIMED_OUT))

    def while_the_broker_is_away(self, engine: Engine) -> None:
        """Stop the broker until the deadlines of orders are overdue."""
        late = self._subjects(LATE)
        if not late:
            return
        for order_id in late:
            self._place(order_id, PAID_IN_TIME_MS, pays=False)
        self.processes.halt("broker")
        gone_ms = wall_clock_ms()
        due_of = select(orders.c.due_ms)
        dues_ms = [values(engine, due_of.where(orders.c.order_id == order_id))[0] for order_id in late]
        for order_id, due_ms in zip(late, dues_ms, strict=True):
            if due_ms > gone_ms:
                write_down(self.fault_log, bugs.BROKER_AWAY, order_id)
        overdue_ms = max(dues_ms) + bugs.LATE_LIMIT_MS + 500
        time.sleep(max(0, overdue_ms - wall_clock_ms()) / 1000)
        self.processes.resume("broker")
        self._await_timed_out(engine, late)

    def until_services_are_gone(self, engine: Engine) -> None:
        """Leave a message unconsumed and a half message undecided, then advance the log."""
        if self._subjects(UNREAD):
            self.processes.stop("carts")
        for order_id in self._subjects(UNREAD):
            write_down(self.fault_log, bugs.CARTS_STOPPED, order_id)
            self._place(order_id, NEVER_MS, pays=True, fills_cart=False)
        for order_id in self._subjects(HALF):
            self._place_and_die(order_id)
        if self._subjects(UNREAD) or self._subjects(HALF):
            self._push(CLOSING, next_full_second_ms(wall_clock_ms() + bugs.WAIT_LIMIT_MS + 1_000))
            is_closed = (pushes.c.push_id == CLOSING, pushes.c.status == PushStatus.DELIVERED)
            self._await(lambda: bool(values(engine, select(pushes.c.push_id).where(*is_closed))))

    def _subjects(self, case: str) -> list[str]:
        return bugs.subjects(case) if case in self.cases else []

    def _place(self, order_id: str, timeout_ms: int, pays: bool, fills_cart: bool = True) -> None:
        if fills_cart:
            lines = [shop_pb2.AddLine(add_id=f"{order_id}/book", sku="book", quantity=2)]
            cart = shop_pb2.AddRequest(customer_id=customer_of(order_id), lines=lines)
            self.caller.call(self._carts.Add, cart)
        self.caller.call(self._orders.Place, place_request(order_id, timeout_ms))
        if pays:
            self.caller.call(self._orders.Pay, shop_pb2.OrderRequest(order_id=order_id))

    def _place_and_die(self, order_id: str) -> None:
        """Place an order for which the service is armed to crash. The service is not restarted."""
        self.processes.leave_dead("orders")
        try:
            self._orders.Place(place_request(order_id, NEVER_MS), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            self._await(lambda: not self.processes.is_running("orders"))

    def _push(self, push_id: str, due_ms: int) -> None:
        stub = stub_of("Pushes", channel_to(self.addresses["pushes"]))
        self.caller.call(stub.Send, push_request(push_id, due_ms))

    @property
    def _orders(self) -> Any:
        return stub_of("Orders", channel_to(self.addresses["orders"]))

    @property
    def _carts(self) -> Any:
        return stub_of("Carts", channel_to(self.addresses["carts"]))

    def _await_timed_out(self, engine: Engine, order_ids: list[str]) -> None:
        timed_out = (orders.c.order_id.in_(order_ids), orders.c.timed_out_ms.is_not(None))
        count = select(func.count()).where(*timed_out)
        self._await(lambda: values(engine, count) == [len(order_ids)])

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. After a timeout, the comparison with the audit reports what is missing."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < deadline:
            self.processes.require_health()
            time.sleep(POLL_S)


def customer_of(order_id: str) -> str:
    """Return the customer of an order. Each of these orders has its own customer and cart."""
    return f"customer-of-{order_id}"


def place_request(order_id: str, timeout_ms: int) -> shop_pb2.PlaceRequest:
    """Return an order for two books."""
    lines = [shop_pb2.Line(sku="book", quantity=2, unit_price_pence=995)]
    return shop_pb2.PlaceRequest(
        order_id=order_id, customer_id=customer_of(order_id), lines=lines, timeout_ms=timeout_ms
    )
