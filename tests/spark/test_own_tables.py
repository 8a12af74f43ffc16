"""What an audit says of somebody's own tables: no false verdict, by the names of the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from services.broker.spine.values import Resolution, TimerName
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.layout import RunFolders
from spark_jobs.main import Inputs, Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.plan.plan import planned
from spark_jobs.plan.sources import PlanSources
from spark_jobs.report.summary import AuditSummary
from spark_jobs.runs import run_of
from tests.spark.own_shop import NAMES, own_tables

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
    half = shop.half("never-set", "c", {"apple": 1})
    shop.write_rows("never-set", "c", {"apple": 1})
    shop.fill_cart("c", {"apple": 1})
    shop.end(half, Resolution.COMMIT)
    shop.pass_deadlines()
    shop.advance(2 * HOUR_MS)
    shop.place("young", "d", {"apple": 1})
    shop.clear_carts()
    summary = audit_own(shop)
    whys = {one.subject_id: one.why for one in summary.findings}
    assert found(summary) == {"cancelled": "timeout-not-fired", "never-set": "timeout-not-fired"}
    assert "was cancelled by a call of its own" in (whys["cancelled"] or "")
    assert "the log has no deadline of it" in (whys["never-set"] or "")
    assert not summary.balanced
    assert summary.cases["in-flight"] == 1


def repair(shop: Shop, out: Path, run_id: str, mapping: Mapping) -> list[str]:
    """Carry out the statements for Redis that a run's plan has; return the kinds of all its steps."""
    kinds = []
    for _, step in planned(run_of(out, run_id).rows(), PlanSources(mapping)):
        kinds.append(step.kind)
        for _ in range(2):
            shop.redis.execute_command(*step.does.get("redis", ["PING"]))
    return kinds


@pytest.mark.parametrize(
    ("customer", "bodies"),
    [("c", {}), (7, {}), ("c", {"customer_id": "", "lines": ""})],
    ids=["texts", "numbers", "neither in messages"],
)
def test_a_missing_ledger_entry_is_put_down_to_its_own_order(
    shop: Shop,
    audit_own: OwnAudit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    customer: Any,
    bodies: dict[str, str],
) -> None:
    monkeypatch.setitem(NAMES, "bodies", bodies)
    for order_id in ("first", "second"):
        shop.place(order_id, customer, {"apple": 1})
        shop.advance(1_000)
    shop.clear_carts()
    for order_id in ("first", "second"):
        shop.pay(order_id)
    shop.redis.hdel(f"cart-ledger:{customer}", "order:first")
    before = audit_own(shop)
    assert found(before) == {"first": "ledger-entry-missing"}
    assert repair(shop, tmp_path / "out", before.run_id, own_tables(shop)[1]) == ["statement"]
    after = audit_own(shop)
    assert after.findings == []
    assert after.balanced
