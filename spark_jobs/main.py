"""The audit from start to end: read every store once, join, judge, write.

What it writes, and where: `layout`.

Order of reading: where the log ends now, the order and push databases, where the log ends then, the carts,
and last the log up to there. So an effect that was read has its cause in what was read (see `reconcile`).
Measured on 2 busy cores: 2,000 orders (3.4 MB of log) 21 s, 6 s of it Spark's start; 30,000 orders (51 MB)
32 s.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from commitlog.errors import ConfigurationError, TidewheelError
from spark_jobs import facts, reconcile, report, shop
from spark_jobs.cases.names import FINDINGS, NOT_COVERED
from spark_jobs.inputs import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.options import AuditOptions
from spark_jobs.segments import StoreLog, open_log
from spark_jobs.session import spark_session
from spark_jobs.source import FORMAT
from spark_jobs.statistics import LogStatistics, log_statistics
from spark_jobs.summary import EVIDENCE, FINDINGS_MAX, AuditSummary, in_case_order, read_findings

__all__ = ["Books", "Inputs", "Sources", "audit", "compare"]

Progress = Callable[[str], None]

_QUICK_BYTES_MAX: Final = 256 * 1024 * 1024
_BYTES_PER_SHUFFLE_PARTITION: Final = 64 * 1024 * 1024
_SHUFFLE_PARTITIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Books:
    """The stores beside the log, exported below `folder`, and the log's ends around their reading."""

    folder: Path
    books_offset: int
    log: StoreLog
    pushes: dict[str, int]
    unreadable_carts: list[str]
    duplicate_orders: int


def audit(
    store: Path, inputs: Inputs, out: Path, options: AuditOptions, on_progress: Progress
) -> AuditSummary:
    """Compares a broker's store with the shop's databases and carts; adds a run to the folder `out`.

    Raises `NotAStore`, `StoreTooNew`, `StoreError`, `DatabaseUnreadable`, `JavaMissing`, `ConfigurationError`
    for an `out` that cannot be written, and `TidewheelError` when Spark gives up.
    """
    sources = Sources(store, inputs)
    run = RunFolders(out, options.run_id)
    _make_folder(run.folder)
    with (
        _spark_failures(run),
        tempfile.TemporaryDirectory(prefix="audit-", dir=out) as scratch,
        ThreadPoolExecutor(1) as reader,
    ):
        exported = reader.submit(sources.export, Path(scratch))
        on_progress("Starting Spark, and reading the databases and carts meanwhile")
        with spark_session(Path(scratch), run.spark_log, quick=sources.log_bytes < _QUICK_BYTES_MAX) as spark:
            return compare(spark, exported.result(), store, run, options, on_progress)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be made ({error.strerror}). Give another folder by --out."
        ) from error


@contextmanager
def _spark_failures(run: RunFolders) -> Iterator[None]:
    """Turns what Spark throws into one sentence; its own words are in its log."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        kind = type(error).__name__
        raise TidewheelError(f"Spark gave up ({kind}); {run.spark_log} says why. Run it again.") from error


class Sources:
    """The stores of one audit, opened and checked before anything slow begins."""

    def __init__(self, store: Path, inputs: Inputs) -> None:
        self._store = store
        self._log = open_log(store)
        self._inputs = inputs.open()

    @property
    def log_bytes(self) -> int:
        """How much log there is to read."""
        return self._log.end_offset - self._log.first_offset

    def export(self, folder: Path) -> Books:
        """Reads them in the one order that keeps effects after causes."""
        orders = self._inputs.export_orders(folder)
        pushes = self._inputs.export_pushes(folder)
        log = open_log(self._store)
        unreadable = self._inputs.export_carts(folder)
        self._inputs.export_order_lines(folder)
        counts = _push_counts(folder) if pushes else {}
        return Books(folder, self._log.end_offset, log, counts, unreadable, orders.duplicates)


def _push_counts(folder: Path) -> dict[str, int]:
    statuses = pq.read_table(folder / "pushes.parquet", columns=["status"])["status"]
    return {f"pushes {row['values'].lower()}": row["counts"] for row in pc.value_counts(statuses).to_pylist()}


def compare(
    spark: SparkSession,
    books: Books,
    store: Path,
    run: RunFolders,
    options: AuditOptions,
    on_progress: Progress,
) -> AuditSummary:
    """The audit from exported books on, with a given Spark session."""
    log_bytes = books.log.end_offset - books.log.first_offset
    partitions = min(2 + log_bytes // _BYTES_PER_SHUFFLE_PARTITION, _SHUFFLE_PARTITIONS_MAX)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    on_progress(f"Reading {log_bytes / 1e6:,.1f} MB of log")
    records = _stage(spark, books, store)
    on_progress("Judging every order")
    differences = _judge(spark, books, records, run)
    on_progress("Counting")
    statistics = log_statistics(records)
    cases = _count_cases(spark, run)
    summary = _summary(books, statistics, cases, differences, run)
    on_progress("Writing the report")
    report.write(summary, statistics, books.log, store, run)
    shutil.copyfile(run.report, run.newest_report)
    run.summary.write_text(json.dumps(summary.as_json(), indent=2))
    return summary


def _stage(spark: SparkSession, books: Books, store: Path) -> DataFrame:
    """The log's records, decoded once; everything else reads this copy."""
    staged = str(books.folder / "records")
    (
        spark.read.format(FORMAT)
        .schema(facts.RECORDS)
        .option("bodies", ",".join([*shop.TOPICS, facts.ACK_TOPIC]))
        .option("durable", books.log.end_offset)
        .load(str(store))
        .write.parquet(staged)
    )
    return facts.classified(spark.read.schema(facts.RECORDS).parquet(staged))


def _judge(spark: SparkSession, books: Books, records: DataFrame, run: RunFolders) -> list[dict[str, object]]:
    """Writes every order with its verdict; returns the first cart differences that no order explains."""

    def exported(name: str) -> DataFrame:
        return spark.read.parquet(str(books.folder / f"{name}.parquet"))

    orders, ledger, differences = exported("orders"), exported("ledger"), exported("differences")
    events = facts.order_events(records)
    attributed = differences.withColumn("order_id", F.lit(None).cast("string"))
    if differences.head() is not None:
        attributed = reconcile.attributed(differences, orders, exported("order_lines"), events).persist()
    surpluses = reconcile.surpluses(attributed)
    joined = reconcile.books(
        orders,
        facts.order_facts(events),
        ledger,
        surpluses,
        books.books_offset,
        _covered_from_ms(books.log, records),
    )
    verdicts = reconcile.verdicts(joined).select("order_id", "case", "why", *EVIDENCE)
    verdicts.write.mode("overwrite").parquet(str(run.orders))
    return [
        row.asDict() for row in attributed.filter(F.col("order_id").isNull()).limit(FINDINGS_MAX).collect()
    ]


def _covered_from_ms(log: StoreLog, records: DataFrame) -> int:
    """When the first record was stored of a log whose beginning was deleted; 0 if it has its beginning."""
    if log.first_offset == 0:
        return 0
    first = records.agg(F.min("store_ms")).first()
    return int(first[0] or 0) if first else 0


def _count_cases(spark: SparkSession, run: RunFolders) -> dict[tuple[str, str | None], int]:
    """How many orders each case and status has; also writes the findings to a file of their own."""
    orders = spark.read.parquet(str(run.orders))
    findings = orders.filter(F.col("case").isin(*FINDINGS))
    findings.write.mode("overwrite").parquet(str(run.findings))
    return {
        (row["case"], row["status"]): row["count"]
        for row in orders.groupBy("case", "status").count().collect()
    }


def _summary(
    books: Books,
    statistics: LogStatistics,
    counted: dict[tuple[str, str | None], int],
    differences: list[dict[str, object]],
    run: RunFolders,
) -> AuditSummary:
    cases = in_case_order(_sums(counted, lambda case, _: case))
    findings_count = sum(cases[case] for case in FINDINGS)
    return AuditSummary(
        run_id=run.run_id,
        balanced=not (
            findings_count
            or NOT_COVERED in cases
            or differences
            or statistics.damaged_bytes
            or books.unreadable_carts
        ),
        totals={
            "orders": sum(cases.values()),
            **dict(sorted(_sums(counted, lambda _, status: _status_name(status)).items())),
            **_log_totals(statistics),
            "cart differences without order": len(differences),
            "unreadable cart fields": len(books.unreadable_carts),
            "orders with the id of another": books.duplicate_orders,
            **books.pushes,
        },
        cases=cases,
        findings=read_findings(run.orders),
        report_path=run.report,
        cart_differences=differences,
    )


def _sums(
    counted: dict[tuple[str, str | None], int], name: Callable[[str, str | None], str]
) -> dict[str, int]:
    """The counts of (case, status), added up by a name made of them."""
    sums: Counter[str] = Counter()
    for (case, status), count in counted.items():
        sums[name(case, status)] += count
    return dict(sums)


def _status_name(status: str | None) -> str:
    return f"orders {status.lower().replace('_', ' ')}" if status else "orders without row"


def _log_totals(statistics: LogStatistics) -> dict[str, int]:
    return {
        "log records": statistics.records,
        **{
            f"records {kind}": count for kind, count in sorted(statistics.by_kind.items()) if kind != "damage"
        },
        **{f"timers {how}": count for how, count in sorted(statistics.timer_ends.items())},
        "unreadable messages": statistics.unreadable,
        "messages without key": statistics.without_key,
        "damaged bytes": statistics.damaged_bytes,
    }
