"""What the demo will do with a list of invoices, decided before anything is sent.

An order is placed. A cancellation ends the newest earlier order of the same customer that holds one of its
items; when there is none, it is `cancel-unmatched`. Every invoice has exactly one fate:

    invoices = accepted orders + refused + cancellations matched + cancellations unmatched

The plan depends on the data and the seed only, so that two runs do the same. Whether an order is paid is
drawn by the seed. An unpaid order that a later cancellation ends gets the long deadline, so that it is the
cancellation that ends it, whatever the speed of the replay.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.shop.online_retail import Invoice


@dataclass(slots=True)
class OrderStep:
    """Place an order; then pay it, or let its deadline come."""

    invoice: Invoice
    pays: bool
    cancelled_later: bool = False


@dataclass(slots=True, frozen=True)
class CancelStep:
    """Cancel an order that was placed by an earlier step."""

    invoice: Invoice
    order_id: str


Step = OrderStep | CancelStep


@dataclass(slots=True)
class Plan:
    """The steps in the order of time, and the invoices that lead to none."""

    steps: list[Step] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    @property
    def orders(self) -> list[OrderStep]:
        """Return the steps that place an order."""
        return [step for step in self.steps if isinstance(step, OrderStep)]

    @property
    def cancellations(self) -> list[CancelStep]:
        """Return the steps that cancel an order."""
        return [step for step in self.steps if isinstance(step, CancelStep)]


def plan_replay(invoices: Iterable[Invoice], pay_ratio: float, seed: int) -> Plan:
    """Decide the fate of invoices that come in the order of time."""
    plan, draw = Plan(), random.Random(seed)
    orders_of: dict[str, list[OrderStep]] = defaultdict(list)
    for invoice in invoices:
        if invoice.is_refused:
            plan.refused.append(invoice.number)
        elif invoice.is_cancellation:
            plan_cancellation(plan, invoice, orders_of[invoice.customer_id])
        else:
            step = OrderStep(invoice, pays=draw.random() < pay_ratio)
            plan.steps.append(step)
            orders_of[invoice.customer_id].append(step)
    return plan


def plan_cancellation(plan: Plan, invoice: Invoice, orders: list[OrderStep]) -> None:
    """Cancel the newest of a customer's orders that shares an item, or note that none does."""
    for step in reversed(orders):
        if step.invoice.lines.keys() & invoice.lines.keys():
            step.cancelled_later = True
            plan.steps.append(CancelStep(invoice, step.invoice.number))
            return
    plan.unmatched.append(invoice.number)
