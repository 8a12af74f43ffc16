"""What an audit says of somebody's own tables: no false verdict, by the names of the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from services.broker.values import Resolution, TimerName
from spark_jobs.layout import RunFolders
from spark_jobs.main import Inputs, Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.report.summary import AuditSummary
from tests.spark.own_shop import own_tables

Shop = Any
HOUR_MS = 3_600_000
OwnAudit = Callable[[Shop], AuditSummary]


@pytest.fixture
def audit_own(spark: SparkSession, tmp_path: Path) -> OwnAudit:
    """`audit_own(shop)` is an audit of own tables with the shop's rows."""
    runs: list[str] = []

    def run(shop: Shop) -> AuditSummary:
        run_id = f"run{len(runs)}"
        runs.append(run_id)
        folder, out = tmp_path / f"exported-{run_id}", tmp_path / "out"
        folder.mkdir()
        orders_url, mapping = own_tables(shop)
        sources = Sources(shop.store, Inputs(orders_url, shop.redis_url, mapping=mapping))
        folders = RunFolders(out, run_id)
        folders.folder.mkdir(parents=True)
        return compare(spark, sources.export(folder), shop.store, folders, AuditOptions(run_id), print)

    return run


def found(summary: AuditSummary) -> dict[str, str]:
    return {one.subject_id: one.case for one in summary.findings}


def test_an_overdue_order_is_found_whatever_became_of_its_deadline(shop: Shop, audit_own: OwnAudit) -> None:
    shop.place("sound", "a", {"apple": 1})
    shop.place("cancelled", "b", {"apple": 1})
    shop.broker.timers.cancel(TimerName("order-timeouts", key="order:cancelled"), "by hand", shop.now_ms)
    shop.flush()
    half = shop.half("never set", "c", {"apple": 1})
    shop.write_rows("never set", "c", {"apple": 1})
    shop.fill_cart("c", {"apple": 1})
    shop.end(half, Resolution.COMMIT)
    shop.pass_deadlines()
    shop.advance(2 * HOUR_MS)
    shop.place("young", "d", {"apple": 1})
    shop.clear_carts()
    summary = audit_own(shop)
    whys = {one.subject_id: one.why for one in summary.findings}
    assert found(summary) == {"cancelled": "timeout-not-fired", "never set": "timeout-not-fired"}
    assert "ended without a delivery or a payment" in (whys["cancelled"] or "")
    assert "the log has no deadline of it" in (whys["never set"] or "")
    assert not summary.balanced
    assert summary.cases["in-flight"] == 1
