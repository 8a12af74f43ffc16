"""Replays a plan against the running services: fills carts, and places, pays and cancels orders.

Steps start in chronological order, and several customers are processed in parallel. All steps of a customer
are processed by the same worker, so they keep their order. Every operation can be repeated, so a call that
fails because of a crash is retried.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

from services.shop.calls import channel_to, stub_of
from services.shop.generated import shop_pb2
from services.shop.replay.plan import CancelStep, OrderStep, Plan, Step
from tidewheel.errors import Busy, RefusedByState, TidewheelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.shop.demo.processes import Processes
    from services.shop.demo.settings import Reporter

WORKERS = 12
CALL_TIMEOUT_S = 30
RETRY_FOR_S = 90
RETRY_PAUSE_S = 0.1
LONG_TIMEOUT_MS = 3_600_000
WORTH_REPEATING = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,  # the status of errors inside the official client
}


@dataclass(slots=True)
class Tally:
    """Counters that all workers share."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str) -> None:
        """Increment a counter."""
        with self.lock:
            self.counts[what] += 1


class Caller:
    """Calls the services and retries temporary errors."""

    def __init__(self, processes: Processes, tally: Tally) -> None:
        self._processes = processes
        self._tally = tally

    def call(self, verb: Callable[..., Any], request: Any) -> Any:
        """Call a method until it returns a response.

        Raises:
            RefusedByState: If the state of the order no longer permits the call.
            TidewheelError: If the service refuses the call for another reason.
            Busy: If the service does not answer within `RETRY_FOR_S`.
        """
        deadline = time.monotonic() + RETRY_FOR_S
        while time.monotonic() < deadline:
            self._processes.require_health()
            try:
                return verb(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                last_words = f"{error.code().name}, {error.details()}"
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise RefusedByState(last_words) from error
                if error.code() not in WORTH_REPEATING:
                    raise TidewheelError(f"A shop service refuses: {last_words}") from error
            self._tally.add("calls repeated")
            time.sleep(RETRY_PAUSE_S)
        raise Busy(f"A shop service has not answered for {RETRY_FOR_S} s: {last_words}.")


class Replay:
    """A replay with one queue of steps per worker."""

    def __init__(self, caller: Caller, orders: str, carts: str, timeout_ms: int, tally: Tally) -> None:
        self._caller = caller
        self._orders = stub_of("Orders", channel_to(orders))
        self._carts = stub_of("Carts", channel_to(carts))
        self._timeout_ms = timeout_ms
        self._tally = tally
        self._failure: Exception | None = None

    def run(self, plan: Plan, reporter: Reporter) -> None:
        """Run all steps.

        Raises:
            Exception: The first error of a worker. The other workers stop.
        """
        queues: list[SimpleQueue[Step]] = [SimpleQueue() for _ in range(WORKERS)]
        for step in plan.steps:
            queues[zlib.crc32(step.invoice.customer_id.encode()) % WORKERS].put(step)
        workers = [
            threading.Thread(target=self._work, args=(queue, reporter), daemon=True) for queue in queues
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self._failure is not None:
            raise self._failure

    def _work(self, queue: SimpleQueue[Step], reporter: Reporter) -> None:
        try:
            while self._failure is None:
                self._do(queue.get_nowait())
                reporter.advance()
        except Empty:
            return
        except Exception as failure:  # raised by `run`
            self._failure = failure

    def _do(self, step: Step) -> None:
        if isinstance(step, CancelStep):
            self._caller.call(self._orders.Cancel, shop_pb2.OrderRequest(order_id=step.order_id))
            return
        self._caller.call(self._carts.Add, cart_request(step))
        self._caller.call(self._orders.Place, place_request(step, self._timeout_ms))
        if step.pays:
            self._pay(step.invoice.number)

    def _pay(self, order_id: str) -> None:
        try:
            self._caller.call(self._orders.Pay, shop_pb2.OrderRequest(order_id=order_id))
        except RefusedByState:  # the order has timed out
            self._tally.add("paid too late")


def cart_request(step: OrderStep) -> shop_pb2.AddRequest:
    """Return the request that adds the lines of an order to the cart before the order is placed."""
    invoice = step.invoice
    lines = [
        shop_pb2.AddLine(add_id=f"{invoice.number}/{line.sku}", sku=line.sku, quantity=line.quantity)
        for line in invoice.lines.values()
    ]
    return shop_pb2.AddRequest(customer_id=invoice.customer_id, lines=lines)


def place_request(step: OrderStep, timeout_ms: int) -> shop_pb2.PlaceRequest:
    """Return the request that places an order. An order that is cancelled later gets the long timeout."""
    invoice = step.invoice
    lines = [
        shop_pb2.Line(sku=line.sku, quantity=line.quantity, unit_price_pence=line.unit_price_pence)
        for line in invoice.lines.values()
    ]
    return shop_pb2.PlaceRequest(
        order_id=invoice.number,
        customer_id=invoice.customer_id,
        lines=lines,
        timeout_ms=LONG_TIMEOUT_MS if step.cancelled_later else timeout_ms,
    )
