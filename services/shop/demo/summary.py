"""The summary of a demo run and its checks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.shop.demo.books import Lateness, OrderBooks
    from services.shop.demo.settling import InFlight


@dataclass(slots=True, frozen=True)
class InvoiceBooks:
    """The number of invoices by outcome."""

    invoices: int
    accepted: int
    refused: int
    cancellations_matched: int
    cancellations_unmatched: int

    @property
    def balanced(self) -> bool:
        """Return whether every invoice has exactly one outcome."""
        fates = self.accepted + self.refused + self.cancellations_matched + self.cancellations_unmatched
        return self.invoices == fates


@dataclass(slots=True, frozen=True)
class DemoSummary:
    """The results of a run."""

    invoices: InvoiceBooks
    refused_rows: dict[str, int]
    orders: OrderBooks
    pushes: dict[str, int]
    in_flight: InFlight
    timeout_lateness: Lateness
    push_lateness: Lateness
    replay: dict[str, int]
    faults: dict[str, int]
    restarts: int
    sabotaged: dict[str, str]
    bugs: dict[str, dict[str, list[str]]]
    """The results by case in a run with bugs.

    `missed` contains the expected subjects without a finding, and `surplus` the unexpected findings.
    """
    audit: dict[str, Any]
    seconds: dict[str, float]
    out: str

    @property
    def orders_balanced(self) -> bool:
        """Return whether every accepted order has a final status or is in flight."""
        books = self.orders
        standing = books.paid + books.timed_out + books.cancelled + books.in_flight
        return self.invoices.accepted == standing

    @property
    def balanced(self) -> bool:
        """Return whether the totals match, no work is in flight, and the audit found nothing."""
        sums = self.invoices.balanced and self.orders_balanced
        return sums and self.in_flight.nothing and bool(self.audit["balanced"])

    @property
    def bugs_found(self) -> bool:
        """Return whether the findings of the audit are exactly the injected bugs."""
        found = (case["expected"] and not case["missed"] + case["surplus"] for case in self.bugs.values())
        return bool(self.bugs) and all(found)

    @property
    def as_wanted(self) -> bool:
        """Return whether the run succeeded. With bugs, the audit must find exactly these.

        Otherwise the totals must be balanced.
        """
        return self.bugs_found if self.bugs else self.balanced

    def as_json(self) -> str:
        """Return the summary as JSON."""
        verdicts = {"balanced": self.balanced} | ({"bugs_found": self.bugs_found} if self.bugs else {})
        return json.dumps(verdicts | asdict(self), indent=2, ensure_ascii=False)
