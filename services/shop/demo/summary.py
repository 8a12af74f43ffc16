"""What a run of the demo amounts to, and whether its books balance."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.shop.demo.books import Lateness, OrderBooks
    from services.shop.demo.settling import InFlight


@dataclass(slots=True, frozen=True)
class InvoiceBooks:
    """The input's invoices by their fate."""

    invoices: int
    accepted: int
    refused: int
    cancellations_matched: int
    cancellations_unmatched: int

    @property
    def balanced(self) -> bool:
        """Return whether every invoice has exactly one fate."""
        fates = self.accepted + self.refused + self.cancellations_matched + self.cancellations_unmatched
        return self.invoices == fates


@dataclass(slots=True, frozen=True)
class DemoSummary:
    """Everything that a run reports."""

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
    """In a run with bugs, by case: `expected`, and of these the `missed`; found without reason, `surplus`."""
    audit: dict[str, Any]
    seconds: dict[str, float]
    out: str

    @property
    def orders_balanced(self) -> bool:
        """Return whether every accepted order stands somewhere."""
        books = self.orders
        standing = books.paid + books.timed_out + books.cancelled + books.in_flight
        return self.invoices.accepted == standing

    @property
    def balanced(self) -> bool:
        """Return whether the run's sums hold, nothing is in flight, and the audit found nothing."""
        sums = self.invoices.balanced and self.orders_balanced
        return sums and self.in_flight.nothing and bool(self.audit["balanced"])

    @property
    def bugs_found(self) -> bool:
        """Return whether the audit has found exactly what the bugs have done."""
        found = (case["expected"] and not case["missed"] + case["surplus"] for case in self.bugs.values())
        return bool(self.bugs) and all(found)

    @property
    def as_wanted(self) -> bool:
        """Return whether the run went as it should: the books balance, or every bug was found and nothing
        else.
        """
        return self.bugs_found if self.bugs else self.balanced

    def as_json(self) -> str:
        """Return the summary as JSON."""
        verdicts = {"balanced": self.balanced} | ({"bugs_found": self.bugs_found} if self.bugs else {})
        return json.dumps(verdicts | asdict(self), indent=2, ensure_ascii=False)
