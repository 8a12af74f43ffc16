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
    "currency": "string",
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
    "unwritten": "array<struct<sku:string,quantity:bigint>>",
    "open_timer_offset": "bigint",
    "is_rearmed": "boolean",
    "deadline_dead_offset": "bigint",
    "is_redelivered": "boolean",
    "is_deadline_redelivered": "boolean",
}
"""Columns of an order and their SQL types; `why` is null where the books balance.

half_end is commit, rollback, expired or null; is_consumed: the carts' group has acknowledged order-created,
or the group of pushes the push;
delivered_*: when the deadline fired; paid_* and cancelled_offset: committed messages; cleared_ms: the ledger;
unwritten: what it took out of the cart without an entry; open_timer_offset: the deadline that still waits;
is_rearmed: one was set again after a delivery;
dead_letter_offset, deadline_dead_offset: order-created, or the deadline, was given up; is_redelivered,
is_deadline_redelivered: and was acknowledged when it was sent again.
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


class RunFolders:
    """The places of one run below `out`, as paths."""

    def __init__(self, out: Path, run_id: str) -> None:
        self.out, self.run_id = out, run_id
        self.orders = out / "orders" / f"run_id={run_id}"
        """Parquet: every order."""
        self.findings = out / "findings" / f"run_id={run_id}"
        """Parquet: every finding."""
        self.folder = out / RUNS / run_id
        """What is written beside the Parquet."""
        self.summary = self.folder / "summary.json"
        """The answer as JSON."""
        self.report = self.folder / "report.html"
        """The report for people."""
        self.spark_log = self.folder / "spark.log"
        """The output of Spark."""
        self.plan = self.folder / "plan.jsonl"
        """The repair plan, if a plan was asked for."""
        self.newest_report = out / "report.html"
        """A copy of the newest run's report."""
