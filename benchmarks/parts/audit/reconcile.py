"""Cost of the audit, from the log and from its staged Parquet, and its comparison against datacompy's.

    measure(folder, orders, shop, heaps, parts) -> figures

* from_log: the whole audit as run by the command, with a heap of 2 GB, by phases.
* from_staged: the same with the log staged beforehand. `judged_s` is the time after staging: the joins, the
  cases, the evidence, the counts, the report.
* comparison: a question that both can answer about the same two inputs, the orders table and the facts of
  the log's messages (one row per order and part of the log, so each side aggregates them itself): orders
  without a committed message, messages without an order, and payments and cancellations found in only one
  of the two. `ours` is the audit's join, bucket by bucket, and one count, with a heap of 2 GB; `datacompy`
  is `SparkSQLCompare` with two compared columns and no report, in the smallest of the heaps in which it
  succeeds. `equal` is whether both have the same counts.

datacompy is installed into a separate folder, because it requires other versions than the audit. Every part
is a separate process, and only these load Spark.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parts.audit.processes import PHASE, Ran, measured
from parts.audit.truth import findings_in, inputs_of, is_perfect, scores
from parts.shop.building import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP: Final = "2g"
DATACOMPY: Final = ("datacompy==1.1.0", "ordered-set==4.1.0", "polars==1.33.1")
COMPARED: Final = ("is_paid", "is_cancelled")
FIRSTS: Final = ("committed_offset", "paid_offset", "cancelled_offset")
PLANTS: Final = 20
STAGED: Final = "staged.json"
JUDGING: Final = "Judging every order"


def measure(
    folder: Path, orders: int, shop: Path | None, heaps: list[str], parts: list[str]
) -> dict[str, Any]:
    """Return all figures; build the shop below `folder` unless a shop is given."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-audit-", dir=folder) as scratch:
        work = Path(scratch)
        if shop is None:
            shop = work / "shop"
            build(shop, orders, PLANTS)
        figures: dict[str, Any] = {"orders": orders}
        if "log" in parts:
            figures["from_log"] = _audit(shop, work)
        if set(parts) & {"staged", "comparison"}:
            _prepare(shop, work)
        if "staged" in parts:
            figures["from_staged"] = _audit(shop, work, str(work / "prepared" / "staged"))
        if "comparison" in parts:
            figures["comparison"] = _comparison(work, heaps)
        return figures


def _audit(shop: Path, work: Path, staged: str = "") -> dict[str, Any]:
    """Run one audit in a separate process: from the log, or from the staged log."""
    ran = _part("audit", str(shop), str(work / "out"), staged)
    shutil.rmtree(work / "out", ignore_errors=True)
    names = [phase.name for phase in ran.phases]
    judging = names.index(JUDGING) if JUDGING in names else len(names)
    judged_s = sum(phase.wall_s for phase in ran.phases[judging:])
    return {"judged_s": round(judged_s, 1)} | ran.as_json()


def _comparison(work: Path, heaps: list[str]) -> dict[str, Any]:
    library = work / "datacompy"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(library)]
    subprocess.run([*command, *DATACOMPY], check=True, stdout=sys.stderr)
    ours = _part("ours", str(work / "prepared"), HEAP)
    figures: dict[str, Any] = {"ours": ours.as_json(), "datacompy": {}}
    for heap in heaps:
        theirs = _part("datacompy", str(work / "prepared"), heap, paths=[library])
        figures["datacompy"][heap] = theirs.as_json()
        if theirs.answer is not None:
            figures["equal"] = theirs.answer["counts"] == ours.answer["counts"]
            figures["times_faster"] = round(theirs.answer["wall_s"] / ours.answer["wall_s"], 1)
            break
    return figures


def _prepare(shop: Path, work: Path) -> None:
    """Prepare the inputs of the later parts; exit with a message if that fails."""
    if _part("prepare", str(shop), str(work / "prepared")).answer is None:
        sys.exit(f"{shop} could not be staged; why is written above. Give a --shop that audit_shop.py built.")


def _part(*arguments: str, paths: list[Path] | None = None) -> Ran:
    return measured(["-m", "parts.audit.reconcile", *arguments], paths or [])


def audited(shop: str, out: str, staged: str) -> dict[str, Any]:
    """Run the whole audit; return its cases, and whether it found exactly the planted faults."""
    from spark_jobs import main
    from spark_jobs.options import AuditOptions
    from spark_jobs.staging.staged import Staged

    if staged:  # takes the place of the staging
        counts = json.loads((Path(staged).parent / STAGED).read_text())
        main.stage_parts = lambda *_: Staged(Path(staged), **counts)  # type: ignore[attr-defined] # imported

    def tell(message: str) -> None:
        print(f"{PHASE}{message}")

    folder = Path(shop)
    summary = main.audit(folder / "store", inputs_of(folder), Path(out), AuditOptions("run"), tell)
    found = findings_in(Path(out) / "findings" / "run_id=run")
    by_case = scores(findings_in(folder / "truth.parquet"), found)
    wrong = {case: one for case, one in by_case.items() if not is_perfect({case: one})}
    return {"cases": summary.cases, "perfect": not wrong, "wrong": wrong}


def prepare(shop: str, prepared: str) -> dict[str, Any]:
    """Export the orders and stage the log: the inputs of the comparison."""
    from commitlog.log.published_log import open_log
    from spark_jobs.buckets import bucket_count
    from spark_jobs.inputs.mapping import SHOP
    from spark_jobs.staging.staged import stage

    store, folder = Path(shop) / "store", Path(prepared)
    folder.mkdir()
    with _spark(folder, HEAP) as spark:
        log = open_log(store)
        buckets = bucket_count(log.end_offset - log.first_offset)
        inputs_of(Path(shop)).open().export_orders(folder, buckets)
        staged = stage(spark, store, log, SHOP, folder / "staged")
    (folder / STAGED).write_text(
        json.dumps({name: getattr(staged, name) for name in ("part_count", "until", "bucket_count")})
    )
    return {}


def ours(prepared: str, heap: str) -> dict[str, Any]:
    """Compare with the audit's method: bucket by bucket, on whole columns."""
    from spark_jobs.buckets import count_of
    from spark_jobs.tasks import in_tasks

    folder = Path(prepared)
    (folder / "counts").mkdir()

    def count(spark: SparkSession) -> dict[str, int]:
        buckets = count_of(folder / "orders.parquet")
        in_tasks(spark, range(buckets), lambda bucket: _count_bucket(folder, bucket, buckets))
        found: Counter[str] = Counter()
        for path in (folder / "counts").iterdir():
            found.update(json.loads(path.read_text()))
        return dict(found)

    return _compared(prepared, heap, count)


def _count_bucket(folder: Path, bucket: int, buckets: int) -> None:
    """Count the differences in one bucket of the two tables; write them to a file."""
    from spark_jobs.books.joining import joined
    from spark_jobs.buckets import read_bucket
    from spark_jobs.inputs.schemas import ORDERS
    from spark_jobs.staging.order_facts import ORDER_FACTS
    from spark_jobs.staging.staged import SCHEMAS

    wanted = tuple(fact for fact in ORDER_FACTS if fact.name in FIRSTS)
    rows = read_bucket(
        folder / "orders.parquet", ORDERS, bucket, buckets, ["order_id", "paid_ms", "cancelled_ms"]
    )
    rows = rows.append_column("has_row", [[True] * rows.num_rows])
    facts = read_bucket(folder / "staged" / "facts", SCHEMAS["facts"], bucket, buckets, ["order_id", *FIRSTS])
    whole = joined(facts, wanted, rows)
    has = {name: whole[name].is_valid().to_numpy() for name in whole.column_names}
    has_message, has_row = has["committed_offset"], has["has_row"]
    both = has_message & has_row
    counts = {
        "only in the database": has_row & ~has_message,
        "only in the log": has_message & ~has_row,
        "is_paid": both & (has["paid_ms"] != has["paid_offset"]),
        "is_cancelled": both & (has["cancelled_ms"] != has["cancelled_offset"]),
    }
    found = {name: int(flags.sum()) for name, flags in counts.items()}
    (folder / "counts" / f"{bucket}.json").write_text(json.dumps(found))


def datacompy(prepared: str, heap: str) -> dict[str, Any]:
    """Make the same comparison with datacompy."""
    from datacompy.spark import SparkSQLCompare

    def count(spark: SparkSession) -> dict[str, int]:
        orders, messages = _orders(spark, Path(prepared)), _messages(spark, Path(prepared))
        compared = SparkSQLCompare(spark, orders, messages, join_columns=["order_id"])
        unequal = {one["column"]: int(one["unequal_cnt"]) for one in compared.column_stats}
        return {
            "only in the database": compared.df1_unq_rows.count(),
            "only in the log": compared.df2_unq_rows.count(),
            **{name: unequal[name] for name in COMPARED},
        }

    return _compared(prepared, heap, count)


def _compared(prepared: str, heap: str, count: Callable[[SparkSession], dict[str, int]]) -> dict[str, Any]:
    with _spark(Path(prepared), heap) as spark:
        print(f"{PHASE}comparing")
        started = time.monotonic()
        counts = count(spark)
        return {"counts": counts, "wall_s": round(time.monotonic() - started, 2)}


def _orders(spark: SparkSession, prepared: Path) -> DataFrame:
    """Return the (order_id, is_paid, is_cancelled) of the orders in the database."""
    rows = spark.read.parquet(str(prepared / "orders.parquet"))
    return rows.selectExpr(
        "order_id", "int(paid_ms is not null) is_paid", "int(cancelled_ms is not null) is_cancelled"
    )


def _messages(spark: SparkSession, prepared: Path) -> DataFrame:
    """Return the same columns of the orders whose message is committed in the log."""
    facts = spark.read.parquet(str(prepared / "staged" / "facts")).groupBy("order_id")
    firsts = facts.min(*FIRSTS)
    return firsts.filter("`min(committed_offset)` is not null").selectExpr(
        "order_id",
        "int(`min(paid_offset)` is not null) is_paid",
        "int(`min(cancelled_offset)` is not null) is_cancelled",
    )


def _spark(scratch: Path, heap: str) -> Any:
    from spark_jobs import session

    session.SETTINGS["spark.driver.memory"] = heap
    session.SETTINGS["spark.sql.shuffle.partitions"] = "16"
    return session.spark_session(scratch, scratch / "spark.log", quick=False)


PARTS: Final[dict[str, Callable[..., Any]]] = {
    "audit": audited,
    "prepare": prepare,
    "ours": ours,
    "datacompy": datacompy,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()
    print(json.dumps(PARTS[given.part](*given.arguments)))
