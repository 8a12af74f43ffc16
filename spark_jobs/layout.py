"""Where an audit's answers lie. Every run adds to the folder, none overwrites another's.

    <out>/orders/run_id=<id>/*.parquet     every order, with `ORDER_COLUMNS`
    <out>/findings/run_id=<id>/*.parquet   every finding, with `FINDING_COLUMNS`
    <out>/runs/<id>/summary.json           totals, cases, the first findings
    <out>/runs/<id>/report.html            the same for people; one file, no network
    <out>/runs/<id>/spark.log              what Spark had to say
    <out>/report.html                      a copy of the newest report

`orders` and `findings` are partitioned data sets: read whole they have a column run_id. Offsets are log
offsets, times milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUNS: Final = "runs"

ORDER_COLUMNS: Final = {
    "order_id": "string",
    "case": "string",
    "why": "string",
    "also": "array<string>",
    "customer_id": "string",
    "status": "string",
    "total_pence": "bigint",
    "placed_ms": "bigint",
    "due_ms": "bigint",
    "paid_ms": "bigint",
    "timed_out_ms": "bigint",
    "cancelled_ms": "bigint",
    "half_offset": "bigint",
    "half_ms": "bigint",
    "half_end": "string",
    "committed_offset": "bigint",
    "committed_ms": "bigint",
    "is_consumed": "boolean",
    "dead_letter_offset": "bigint",
    "timer_offset": "bigint",
    "timer_due_ms": "bigint",
    "delivered_offset": "bigint",
    "delivered_ms": "bigint",
    "timer_cancel_offset": "bigint",
    "paid_offset": "bigint",
    "paid_message_ms": "bigint",
    "cancelled_offset": "bigint",
    "cleared_ms": "bigint",
    "surplus": "array<struct<sku:string,cart:bigint,ledger:bigint>>",
}
"""Columns of an order and their SQL types; `why` is null where the books balance.

half_end is commit, rollback, expired or null; is_consumed: the carts' group has acknowledged order-created;
delivered_*: when the deadline fired; paid_* and cancelled_offset: committed messages; cleared_ms: the ledger.
"""

TIMELINE: Final = "array<struct<physical_offset:bigint,store_ms:bigint,kind:string,topic:string,note:string>>"

FINDING_COLUMNS: Final = {
    "subject": "string",
    "subject_id": "string",
    "case": "string",
    "why": "string",
    "also": "array<string>",
    **ORDER_COLUMNS,
    "timeline": TIMELINE,
}
"""subject is order, push, cart or window; the columns of an order are null for the others."""


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The places of one run below `out`."""

    out: Path
    run_id: str

    @property
    def orders(self) -> Path:
        """Parquet: every order."""
        return self.out / "orders" / f"run_id={self.run_id}"

    @property
    def findings(self) -> Path:
        """Parquet: every finding."""
        return self.out / "findings" / f"run_id={self.run_id}"

    @property
    def folder(self) -> Path:
        """What is written beside the Parquet."""
        return self.out / RUNS / self.run_id

    @property
    def summary(self) -> Path:
        """The answer as JSON."""
        return self.folder / "summary.json"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.folder / "report.html"

    @property
    def spark_log(self) -> Path:
        """What Spark had to say."""
        return self.folder / "spark.log"

    @property
    def plan(self) -> Path:
        """The repair plan, if one was asked for."""
        return self.folder / "plan.jsonl"

    @property
    def newest_report(self) -> Path:
        """A copy of the newest run's report."""
        return self.out / "report.html"
