"""The audit from start to end: read every store once, join, judge, write.

    sources     the databases and carts, exported while Spark starts
    staging     the one pass over the log
    books       one row per order
    verdicts    a case for every order, and the evidence of every finding
    report      the result for people

Output files: `layout`.

The stores of a running shop cannot be read at the same instant. They are read in an order that ensures that
for every effect that was read, the cause was read too:

    1. the end of the log, `books_offset`    a message committed before it has its row in 2
    2. the order and push databases
    3. the end of the log again, `log`       the end of the judged log, which has the halves of the rows of 2
    4. the carts and their ledger            an acknowledgement in the log has its effect in 4

Spark reads the log up to the first end while 2 to 4 are exported; `stage_rest` reads the part between the two
ends. Therefore a difference is real, with one exception: a message after `books_offset` may be newer than the
database, so its order is in flight and no finding.

The "now" of the judgement (`as_of_ms`) is the newest store time in the log, unless given: a stopped shop is
judged as of its stop, and a later repetition of the audit has the same result.

Cost: one pass over each store; memory does not grow with the log (2 GB for Java, about 200 MB for a task).

Limitation: row times come from the shop's clock, and store times from the broker's. The check that the log
covers an order compares both with a tolerance of `grace_ms`. If the clocks differ by more, sound orders that
were placed near the beginning of the log become findings.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlog.epochs import epochs_of
from spark_jobs import verdicts
from spark_jobs.books.book_rows import Sides
from spark_jobs.books.books import Books, Horizon
from spark_jobs.cases.names import FINDINGS, NOT_COVERED, SEALED_WINDOW_CHANGED
from spark_jobs.errors import StreamLost
from spark_jobs.inputs.sources import Exported, Sources
from spark_jobs.inputs.stores import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.log.scan.slices import slices
from spark_jobs.names import OrderNames
from spark_jobs.options import AuditOptions
from spark_jobs.positions import Position, loss_at
from spark_jobs.report import report
from spark_jobs.report.absent import absent_names
from spark_jobs.report.statistics import LogStatistics, log_statistics
from spark_jobs.report.summary import AuditSummary, in_case_order, read_findings
from spark_jobs.report.zones import wrong_zone
from spark_jobs.runs import scratch_prefix
from spark_jobs.seals.seals import changed_windows
from spark_jobs.session import spark_session
from spark_jobs.staging.staged import SLICE_BYTES, Staged, first_stored_ms, stage_parts, stage_rest
from tidewheel.errors import ConfigurationError, TidewheelError

__all__ = ["Inputs", "Sources", "audit", "compare"]

Progress = Callable[[str], None]

_BYTES_PER_SHUFFLE_PARTITION: Final = 64 * 1024 * 1024
_SHUFFLE_PARTITIONS_MAX: Final = 64


def audit(
    store: Path, inputs: Inputs, out: Path, options: AuditOptions, on_progress: Progress
) -> AuditSummary:
    """Compare a broker's store with the shop's databases and carts; add a run to the folder `out`.

    Raise `NotAStore`, `StoreTooNew`, `StoreError`, `DatabaseUnreadable`, `JavaMissing`, `ConfigurationError`
    for an `out` that cannot be written, `StreamLost` for a store that is replaced during the audit, and
    `TidewheelError` when Spark fails.
    """
    sources = Sources(store, inputs)
    books_at = Position.at_end_of(sources.log)
    run = RunFolders(out, options.run_id)
    _make_folder(run.folder)
    with (
        _spark_failures(run),
        tempfile.TemporaryDirectory(prefix=scratch_prefix(os.getpid()), dir=out) as scratch,
        ThreadPoolExecutor(1) as reader,
    ):
        exported = reader.submit(sources.export, Path(scratch))
        on_progress("Starting Spark, and reading the databases and carts meanwhile")
        with spark_session(Path(scratch), run.spark_log, quick=True) as spark:
            on_progress(f"Reading {sources.log_bytes / 1e6:,.1f} MB of log")
            begun = Staged(Path(scratch) / "staged", bucket_count=sources.bucket_count)
            begun = stage_parts(spark, slices(sources.log, SLICE_BYTES), sources.log, sources.mapping, begun)
            books = exported.result()
            check_same_log(store, books_at)
            return compare(spark, books, store, run, options, on_progress, begun)


def check_same_log(store: Path, position: Position) -> None:
    """Raise `StreamLost` if the store no longer has the log that the audit has begun to read.

    Otherwise the parts before and after the first end could be from two histories, judged as one. Limitation:
    a log without an intact record cannot be recognized, and is not checked.
    """
    loss = None if position.mark is None else loss_at(store, position)
    if loss is not None:
        raise StreamLost(f"{loss.why} The store was replaced while it was audited: run the audit again.")


def _make_folder(folder: Path) -> None:
    """Create the folder of a run, which no other run may share; raise `ConfigurationError`."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigurationError(
            f"{folder} is of another audit that has begun at the same moment. Run it again, or give another "
            "folder by --out."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be made ({error.strerror}). Give another folder by --out."
        ) from error


@contextmanager
def _spark_failures(run: RunFolders) -> Iterator[None]:
    """Convert Spark's exceptions to `TidewheelError`; their texts are in Spark's log."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        kind = type(error).__name__
        raise TidewheelError(f"Spark gave up ({kind}); {run.spark_log} says why. Run it again.") from error


def compare(
    spark: SparkSession,
    exported: Exported,
    store: Path,
    run: RunFolders,
    options: AuditOptions,
    on_progress: Progress,
    begun: Staged | None = None,
) -> AuditSummary:
    """Audit exported books with a given Spark session; return the summary.

    `begun` is the part of the log that was read during the export of the books; the rest is read here.
    """
    started_ms = time.time_ns() // 1_000_000
    log = exported.log
    log_bytes = log.end_offset - log.first_offset
    partitions = min(2 + log_bytes // _BYTES_PER_SHUFFLE_PARTITION, _SHUFFLE_PARTITIONS_MAX)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    on_progress("Reading what was written meanwhile" if begun else "Reading the log")
    read = begun or Staged(exported.folder / "staged", bucket_count=exported.bucket_count)
    staged = stage_rest(spark, store, log, exported.mapping, read)
    statistics = log_statistics(staged)
    on_progress("Judging every order")
    began_ms = first_stored_ms(log)
    # A log without deleted records covers orders from one `grace_ms` before its first record; `is_covered`
    # adds one, so two are subtracted. Otherwise, the last deleted record may have been stored in the same
    # millisecond as the first remaining one.
    left_from_ms = began_ms + 1 if log.first_offset else 0
    horizon = Horizon(
        exported.books_offset,
        left_from_ms or max(0, began_ms - 2 * options.grace_ms),
        options.as_of_ms or statistics.last_ms,
        int(exported.has_carts),
        exported.read_ms,
    )
    sides = Sides(exported.folder, staged, log, exported.mapping, exported.has_carts)
    books = Books(spark, sides, horizon, options)
    remarkable = verdicts.write_orders(books, run)
    on_progress("Gathering the evidence of findings")
    verdicts.write_findings(spark, books, remarkable, sides, run)
    is_partial = (options.from_ms, options.to_ms) != (None, None)
    names = OrderNames.of_mapping(exported.mapping)
    changed = changed_windows(run.out, run.orders, left_from_ms, is_partial, names)
    verdicts.append_others(spark, SEALED_WINDOW_CHANGED, [(one.subject_id, one.why) for one in changed], run)
    counted = verdicts.count(run, options.window_ms)
    about = {
        "options": asdict(options),
        "as_of_ms": horizon.as_of_ms,
        "covered_from_ms": left_from_ms,
        "log_began_ms": began_ms,
        "epochs": [one._asdict() for one in epochs_of(statistics.epochs, log.first_offset, log.epoch)],
        "has_carts": exported.has_carts,
        "has_currency": exported.mapping.has_currency,
        "names": names.as_json(),
        "left_out": list(exported.left_out),
        "lacking": [*absent_names(staged, exported.mapping), *wrong_zone(run.orders, exported.mapping)],
        "unjudged": list(books.unjudged),
        "store": str(store),
        "started_ms": started_ms,
        "written_ms": time.time_ns() // 1_000_000,
    }
    differences = verdicts.cart_differences(books, remarkable)
    summary = _summary(exported, statistics, counted, differences, run, about)
    on_progress("Writing the report")
    report.write(summary, statistics, counted.orders, log, store, run)
    shutil.copyfile(run.report, run.newest_report)
    run.summary.write_text(json.dumps(summary.as_json(), indent=2))
    return summary


def _summary(
    exported: Exported,
    statistics: LogStatistics,
    counted: verdicts.Counted,
    differences: list[dict[str, object]],
    run: RunFolders,
    about: dict[str, object],
) -> AuditSummary:
    cases = in_case_order(counted.orders.cases)
    findings_count = sum(cases[case] for case in FINDINGS) + sum(counted.others.values())
    return AuditSummary(
        run_id=run.run_id,
        balanced=not (
            findings_count or NOT_COVERED in cases or statistics.damaged_bytes or exported.unreadable_carts
        ),
        totals={
            "orders": sum(cases.values()),
            **dict(
                sorted((_status_name(status), count) for status, count in counted.orders.statuses.items())
            ),
            **_log_totals(statistics),
            "cart differences without order": len(differences),
            "unreadable cart fields": len(exported.unreadable_carts),
            "orders with the id of another": exported.orders.duplicates,
            "order rows without an id": exported.orders.without_key,
            **exported.pushes,
        },
        cases=cases,
        findings=read_findings(run),
        report_path=run.report,
        cart_differences=differences,
        others=counted.others,
        windows=counted.windows,
        about=about,
    )


def _status_name(status: str | None) -> str:
    return f"orders {status.lower().replace('_', ' ')}" if status else "orders without row"


def _log_totals(statistics: LogStatistics) -> dict[str, int]:
    return {
        "log records": statistics.records,
        **{f"records {kind}": count for kind, count in sorted(statistics.by_kind.items())},
        **{f"timers {how}": count for how, count in sorted(statistics.timer_ends.items())},
        "unreadable messages": statistics.unreadable,
        "messages without key": statistics.without_key,
        "damaged bytes": statistics.damaged_bytes,
    }
