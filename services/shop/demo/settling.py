"""Waits until no work is in flight: no pending orders or pushes, no open half messages and no unconsumed
messages.

Pending orders and pushes are counted in the databases. Half messages and unconsumed messages come from the
broker's metrics.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from services.http.calls import opener
from services.shop.demo.books import order_books, push_books

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from services.shop.demo.processes import Processes

OPEN_HALVES = "rocketmq_half_messages"
UNREAD = ("rocketmq_consumer_lag_messages", "rocketmq_consumer_inflight_messages")
POLL_S = 0.25
HTTP_TIMEOUT_S = 10


@dataclass(slots=True, frozen=True)
class InFlight:
    """The work that is still in flight."""

    orders: int
    pushes: int
    open_halves: int
    unread_messages: int

    @property
    def nothing(self) -> bool:
        """Return whether no work is in flight."""
        return not any(asdict(self).values())

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(self).items() if count)


def settle(
    processes: Processes, http: str, orders_engine: Engine, pushes_engine: Engine, patience_s: float
) -> InFlight:
    """Wait until no work is in flight, up to `patience_s`. Returns the remaining work."""
    deadline = time.monotonic() + patience_s
    while True:
        processes.require_health()
        left = look(http, orders_engine, pushes_engine)
        if left.nothing or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


def look(http: str, orders_engine: Engine, pushes_engine: Engine) -> InFlight:
    """Return the work that is in flight now."""
    gauges = broker_gauges(http)
    return InFlight(
        orders=order_books(orders_engine).in_flight,
        pushes=push_books(pushes_engine)["scheduled"],
        open_halves=gauges.get(OPEN_HALVES, 0),
        unread_messages=sum(gauges.get(name, 0) for name in UNREAD),
    )


def broker_gauges(http: str) -> dict[str, int]:
    """Return the broker's gauges, each summed over its labels."""
    with opener().open(f"http://{http}/metrics", timeout=HTTP_TIMEOUT_S) as answer:
        text = answer.read().decode()
    return {
        family.name: round(sum(sample.value for sample in family.samples))
        for family in text_string_to_metric_families(text)
        if family.type == "gauge"
    }
