"""The output folder of audits. Every run adds files, and replaces only the copy of the newest report.

    <out>/orders/run_id=<id>/*.parquet     every order, with `ORDER_COLUMNS`
    <out>/findings/run_id=<id>/*.parquet   every finding, with `FINDING_COLUMNS`
    <out>/runs/<id>/summary.json           totals, cases, the first findings
    <out>/runs/<id>/report.html            the report for people; one file, no network
    <out>/runs/<id>/spark.log              the output of Spark
    <out>/runs/<id>/plan.jsonl             the repair plan, if requested
    <out>/report.html                      a copy of the newest report

`orders` and `findings` are partitioned data sets: a read of all runs has the column run_id. Offsets are log
offsets, and times are milliseconds since 1970.
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
"""Columns of an order and their SQL types; `why` is null if the books balance.

half_end: commit, rollback, expired or null; is_consumed: the carts' group has acknowledged order-created, or
the group of pushes the push; delivered_*: the delivery of the deadline; paid_offset, paid_message_ms and
cancelled_offset: the committed messages; cleared_ms: the time of the entry in the cart's ledger; unwritten:
the articles that the order removed from the cart without an entry; open_timer_offset: the pending deadline;
is_rearmed: a deadline was set again after a delivery; dead_letter_offset, deadline_dead_offset: the dead
letter of order-created, or of the deadline; is_redelivered, is_deadline_redelivered: the dead letter was sent
again and acknowledged.
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
"""subject is order, push, cart or window; columns that do not apply to a subject are null."""


class RunFolders:
    """The paths of one run below `out`."""

    def __init__(self, out: Path, run_id: str) -> None:
        self.out, self.run_id = out, run_id
        self.orders = out / "orders" / f"run_id={run_id}"
        """Parquet: every order."""
        self.findings = out / "findings" / f"run_id={run_id}"
        """Parquet: every finding."""
        self.folder = out / RUNS / run_id
        """The folder of the other files."""
        self.summary = self.folder / "summary.json"
        """The result as JSON."""
        self.report = self.folder / "report.html"
        """The report for people."""
        self.spark_log = self.folder / "spark.log"
        """The output of Spark."""
        self.plan = self.folder / "plan.jsonl"
        """The repair plan, if requested."""
        self.newest_report = out / "report.html"
        """A copy of the newest run's report."""
