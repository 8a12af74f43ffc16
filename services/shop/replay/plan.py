"""The plan of a replay, which is complete before any message is sent.

An invoice of an order is placed. A cancellation cancels the latest earlier order of the same customer with at
least one of its articles. If there is none, it is unmatched. Every invoice has exactly one outcome:

    invoices = accepted orders + refused + cancellations matched + cancellations unmatched

The plan depends only on the input and the seed, so it is reproducible. Payments are chosen at random from the
seed. An unpaid order with a later cancellation gets the long timeout, so that it does not time out before the
cancellation.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.shop.replay.online_retail import Invoice


@dataclass(slots=True)
class OrderStep:
    """Place an order and optionally pay it."""

    invoice: Invoice
    pays: bool
    cancelled_later: bool = False


@dataclass(slots=True, frozen=True)
class CancelStep:
    """Cancel an order from an earlier step."""

    invoice: Invoice
    order_id: str


Step = OrderStep | CancelStep


@dataclass(slots=True)
class Plan:
    """The steps in chronological order, and the invoices without a step."""

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
    """Return the plan for invoices in chronological order."""
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
    """Cancel the latest order of the customer that shares an article, or add the invoice to the unmatched
    cancellations.
    """
    for step in reversed(orders):
        if step.invoice.lines.keys() & invoice.lines.keys():
            step.cancelled_later = True
            plan.steps.append(CancelStep(invoice, step.invoice.number))
            return
    plan.unmatched.append(invoice.number)
