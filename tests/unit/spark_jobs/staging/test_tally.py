"""What is counted of a log: runs of schedules have a lateness, and their bodies are what was promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from commitlog import properties
from commitlog.published_log import open_log
from commitlog.record import Record
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.log.walk import Check
from spark_jobs.report.statistics import LogStatistics, log_statistics
from spark_jobs.staging.staged import SCHEMAS, Staged, parts_of, stage_part

DUE_MS = 1_763_700_000_000


def run(due_ms: int, late_ms: int, body: object, offset: int) -> Record:
    """A run of the schedule `pushes:daily`, stored so much after its time."""
    pairs = {
        properties.KEYS: "daily",
        properties.SCHEDULE: "pushes:daily",
        properties.OCCURRENCE_MS: str(due_ms),
        properties.MESSAGE_ID: f"pushes:daily@{due_ms}",
    }
    return record(pairs, body, offset, due_ms + late_ms)


def timer(late_ms: int, push_id: str, offset: int) -> Record:
    """A push that was a delayed message."""
    pairs = {
        properties.KEYS: push_id,
        properties.TIMER_OFFSET: "0",
        properties.DUE_MS: str(DUE_MS),
    }
    return record(pairs, {"push_id": push_id}, offset, DUE_MS + late_ms)


def record(pairs: dict[str, str], body: object, offset: int, store_ms: int) -> Record:
    """A message of the pushes."""
    return Record(
        topic="pushes",
        body=json.dumps(body).encode(),
        properties=properties.encode(pairs),
        queue_offset=offset,
        store_ms=store_ms,
    )


def figures_of(store: Path, folder: Path) -> LogStatistics:
    """The statistics of a log, read as the audit reads it."""
    log = open_log(store)
    parts = parts_of(store, log)
    staged = Staged(folder, len(parts))
    for name in SCHEMAS:
        staged.path(name).mkdir(parents=True)
    for number, part in enumerate(parts):
        stage_part(number, part, Check.BODY, SHOP, staged)
    return log_statistics(staged)


def test_a_run_of_a_schedule_is_readable_and_has_a_lateness_of_its_own(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    fine = {"push_id": "daily", "schedule_id": "daily", "text": "hello"}
    records = [
        timer(3, "once", 0),
        run(DUE_MS, 5, fine, 1),
        run(DUE_MS + 1_000, 7, {"text": "first", "push_id": "daily"}, 2),
    ]
    figures = figures_of(write_log(records), tmp_path / "staged")
    assert figures.unreadable == 0
    late = {one.topic: (one.deliveries, one.p50_ms, one.max_ms) for one in figures.lateness}
    assert late == {"pushes": (1, 3, 3), "pushes, by a schedule": (2, 5, 7)}
    assert figures.messages_by_topic == {"pushes": sum(one.deliveries for one in figures.lateness)}


def test_a_run_whose_body_names_another_is_not_what_was_promised(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    records = [run(DUE_MS, 0, {"push_id": "weekly"}, 0), run(DUE_MS + 1_000, 0, "text", 1)]
    figures = figures_of(write_log(records), tmp_path / "staged")
    assert (figures.unreadable, len(figures.unreadable_samples)) == (2, 2)
