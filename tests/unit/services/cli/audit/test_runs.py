"""`tidewheel audit show`: what it leaves out, what it says first, and a reader that has read enough."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from services.cli.audit.results import show_summary
from services.cli.audit.runs import show
from spark_jobs.layout import RunFolders
from spark_jobs.report.summary import AuditSummary
from tests.audit_runs import write_run

LACKING = "The log has no record of topic sales, which [topics] order_created names. It has orders."


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a run of 30 findings."""
    summary = {"balanced": False, "totals": {"orders": 100}, "lacking": [LACKING]}
    cases = {"fired-late": 30, "balanced": 70}
    folders = write_run(tmp_path, "20261121T020000Z", cases=cases, **summary)
    ids = [f"o{number}" for number in range(30)]
    rows = [{"subject": "order", "subject_id": one, "case": "fired-late", "why": "Late."} for one in ids]
    pq.write_table(pa.Table.from_pylist(rows), folders.findings / "part.parquet")
    return tmp_path


def test_a_table_says_that_it_has_left_findings_out(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(out=out, run_id="newest", case="", order="", limit=20, as_json=False)
    printed = capsys.readouterr().out
    all_of_them = f"All of them: tidewheel audit show --limit 30 --out {out}"
    assert f"These are 20 of 30 findings. {all_of_them}" in printed
    show(out=out, run_id="newest", case="fired-late", order="", limit=30, as_json=False)
    assert "These are" not in capsys.readouterr().out
    show(out=out, run_id="newest", case="fired-late", order="", limit=3, as_json=False)
    assert "These are 3 of 30 findings. All of them: tidewheel audit show --case fired-late --limit 30" in (
        capsys.readouterr().out
    )


def test_what_the_log_does_not_have_is_said_before_any_finding(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(out=out, run_id="newest", case="", order="", limit=20, as_json=False)
    assert capsys.readouterr().out.startswith(LACKING)


def test_orders_that_could_not_be_judged_are_shown_by_their_case(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are no findings, so `--case not-covered` showed none of them."""
    folders = RunFolders(out, "20261121T020000Z")
    rows = [{"order_id": "ghost", "case": "not-covered", "why": "Only a ledger has it."}]
    pq.write_table(pa.Table.from_pylist(rows), folders.orders / "part.parquet")
    show(out=out, run_id="newest", case="not-covered", order="", limit=20, as_json=False)
    printed = capsys.readouterr().out
    assert "ghost" in printed
    assert "Only a ledger has it." in printed


def test_orders_that_balance_have_no_reason_to_show(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = RunFolders(out, "20261121T020000Z")
    rows = [{"order_id": "good", "case": "balanced", "why": None}]
    pq.write_table(pa.Table.from_pylist(rows), folders.orders / "part.parquet")
    show(out=out, run_id="newest", case="balanced", order="", limit=20, as_json=False)
    printed = capsys.readouterr().out
    assert "good" in printed
    assert "None" not in printed


def test_a_case_without_an_order_is_a_sentence(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(out=out, run_id="newest", case="effect-twice", order="", limit=20, as_json=False)
    assert "Run 20261121T020000Z has no order in the case effect-twice." in capsys.readouterr().out


def test_the_id_of_an_order_in_place_of_a_runs_is_told_its_option(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        show(out=out, run_id="o7", case="", order="", limit=20, as_json=False)
    assert "Of one order of the newest run, say --order o7." in capsys.readouterr().err


def test_orders_older_than_the_log_are_left_out_by_a_day_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time of today would be another tomorrow, when the command is run again."""
    folders = RunFolders(tmp_path / "my books", "20261121T020000Z")
    began = datetime.now().replace(microsecond=0)
    about = {"log_began_ms": int(began.timestamp() * 1_000), "left_out": [], "epochs": []}
    cases = {"not-covered": 2}
    show_summary(
        AuditSummary("r", False, {"orders": 2}, cases, [], folders.report, [], {}, [], about), as_json=False
    )
    told = capsys.readouterr().err
    assert f"tidewheel audit show --case not-covered --out '{tmp_path}/my books'. Those" in told
    assert told.endswith(f"--from {began.isoformat()}\n")


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("verb", ["show", "ls", "mapping"])
def test_a_reader_that_has_read_enough_gets_no_traceback(out: Path, buffered: str, verb: str) -> None:
    """Nor 1, which says that there are findings."""
    options = [] if verb == "mapping" else ["--out", str(out)]
    reads, writes = os.pipe()
    os.close(reads)
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli.main", "audit", verb, *options],
        env=os.environ | {"PYTHONUNBUFFERED": buffered},
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writes)
    assert (ran.returncode, ran.stderr) == (141, "")
