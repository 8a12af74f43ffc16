"""The folder of runs, read back without Spark; and what Prometheus learns of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.ops.metrics.audit_metrics import AuditMetrics
from spark_jobs.layout import RunFolders
from spark_jobs.runs import forget, newest_run, run_of, runs
from tests.audit_runs import SUMMARY, write_run
from tidewheel.errors import ConfigurationError, NotFound

IDS = ("20261119T020000Z", "20261120T020000Z", "20261121T020000Z", "20261121T020000Z-2")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for run_id in IDS:
        write_run(tmp_path / "nightly", run_id, totals={"orders": 4}, cases={"balanced": 4})
    return tmp_path / "nightly"


def test_runs_are_listed_by_time(out: Path) -> None:
    assert [run.run_id for run in runs(out)] == list(IDS)
    assert run_of(out).run_id == IDS[-1]
    assert run_of(out, IDS[0]).run_id == IDS[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"balanced": true, "totals": {}, "cases": {}}'])
def test_a_run_that_did_not_end_is_no_run(out: Path, text: str) -> None:
    unfinished = RunFolders(out, "20261122T020000Z")
    unfinished.folder.mkdir()
    unfinished.summary.write_text(text)
    assert newest_run(out) == run_of(out, IDS[-1])
    assert len(runs(out)) == len(IDS)


@pytest.mark.parametrize("run_id", ["20200101T000000Z", "../nightly", "..", "a/b"])
def test_a_run_that_there_is_not_is_told(out: Path, run_id: str) -> None:
    with pytest.raises(NotFound, match="See: tidewheel audit ls"):
        run_of(out, run_id)


def test_no_runs_at_all_say_how_to_make_one(tmp_path: Path) -> None:
    assert runs(tmp_path / "none") == []
    with pytest.raises(NotFound, match="tidewheel audit run"):
        run_of(tmp_path / "none")


def test_the_newest_runs_stay_with_all_that_is_theirs(out: Path) -> None:
    (out / "seals" / "00000001").mkdir(parents=True)
    assert forget(out, 3) == [IDS[0]]
    assert [run.run_id for run in runs(out)] == list(IDS[1:])
    for folder in ("orders", "findings"):
        assert sorted(path.name for path in (out / folder).iterdir()) == [f"run_id={one}" for one in IDS[1:]]
    assert (out / "seals" / "00000001").is_dir()
    assert forget(out, 3) == []
    with pytest.raises(ConfigurationError, match="--keep"):
        forget(out, 0)


def test_what_was_interrupted_goes_when_it_is_older_than_what_stays(out: Path) -> None:
    for run_id in ("20261118T020000Z", "20261122T020000Z"):
        folders = RunFolders(out, run_id)
        folders.folder.mkdir()
        folders.orders.mkdir()
    assert forget(out, len(IDS)) == ["20261118T020000Z"]
    assert sorted(path.name for path in (out / "orders").iterdir()) == [
        f"run_id={one}" for one in (*IDS, "20261122T020000Z")
    ]


def test_findings_are_chosen_by_case_and_subject(out: Path) -> None:
    run = run_of(out)
    rows = [
        {"subject": "order", "subject_id": "o1", "order_id": "o1", "case": "fired-late"},
        {"subject": "order", "subject_id": "o2", "order_id": "o2", "case": "fired-late"},
        {"subject": "push", "subject_id": "o1", "order_id": None, "case": "pushes-do-not-sum"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), run.folders.findings / "part.parquet")
    orders = [{"order_id": name, "case": "balanced"} for name in ("o1", "o3")]
    pq.write_table(pa.Table.from_pylist(orders), run.folders.orders / "part.parquet")
    assert [row["subject_id"] for row in run.rows("fired-late")] == ["o1", "o2"]
    assert [row["subject"] for row in run.rows(subject_id="o1")] == ["order", "push"]
    assert run.order("o1")["case"] == "fired-late"
    assert run.order("o3")["case"] == "balanced"
    with pytest.raises(NotFound, match="no order o4"):
        run.order("o4")


def test_findings_of_all_kinds_are_counted(tmp_path: Path) -> None:
    cases = {"fired-late": 2, "half-unresolved": 0, "in-flight": 5, "balanced": 9}
    write_run(
        tmp_path, IDS[0], balanced=False, cases=cases, others={"pushes-do-not-sum": 1, "cart-difference": 0}
    )
    run = run_of(tmp_path)
    assert run.finding_cases == {"fired-late": 2, "pushes-do-not-sum": 1}
    assert run.findings_count == 3


def scraped(out: Path) -> dict[tuple[str, str], float]:
    """What Prometheus reads: (name, kind) -> value."""
    text = generate_latest(AuditMetrics(out).registry).decode()
    return {
        (sample.name, sample.labels.get("kind", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_the_newest_run(out: Path) -> None:
    totals, cases = {"orders": 8}, {"fired-late": 2, "balanced": 6}
    write_run(out, "20261122T020000Z", balanced=False, totals=totals, cases=cases)
    found = scraped(out)
    assert found["mq_audit_cases", "fired-late"] == 2
    assert found["mq_audit_balanced_ratio", ""] == 0.75
    assert found["mq_audit_last_success_timestamp_seconds", ""] == SUMMARY["written_ms"] / 1000
    assert ("mq_audit_window_age_seconds", "") not in found, "nothing is sealed"


def test_before_the_first_run_there_are_no_metrics(tmp_path: Path) -> None:
    assert scraped(tmp_path) == {}
