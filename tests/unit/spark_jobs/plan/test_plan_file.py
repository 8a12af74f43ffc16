"""The file of a plan: a step on each line, whatever texts its orders and messages hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from services.cli.root import load
from spark_jobs.cases import names
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.layout import RunFolders
from spark_jobs.names import OrderNames
from spark_jobs.plan import plan
from spark_jobs.plan.plan import Planning, Step
from spark_jobs.plan.sources import PlanSources
from spark_jobs.runs import run_of
from tests.audit_runs import write_run


def run_with(out: Path, order_id: str) -> None:
    """Write a run with one finding."""
    folders = write_run(out, "20261121T020000Z", balanced=False)
    row = {"subject": "order", "subject_id": order_id, "order_id": order_id, "why": "Because."}
    found = row | {"case": names.PAID_BUT_TIMED_OUT}
    pq.write_table(pa.Table.from_pylist([found]), folders.findings / "part.parquet")


@pytest.mark.parametrize("order_id", ["a\u2028b", "a\u2029b", "plain", "名前"])
def test_a_plan_is_printed_as_json_whatever_its_texts_hold(tmp_path: Path, order_id: str) -> None:
    """To Python U+2028 is the end of a line, to JSON it is none."""
    run_with(tmp_path / "out", order_id)
    done = CliRunner().invoke(load("audit"), ["plan", "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert [step["subject_id"] for step in json.loads(done.output)] == [order_id]


def test_a_plan_by_other_names_than_the_runs_is_refused(tmp_path: Path) -> None:
    """It would send messages to the shop's topics, whatever the run has looked at."""
    run_with(tmp_path / "out", "7")
    folders = RunFolders(tmp_path / "out", "20261121T020000Z")
    own = as_mapping({"orders": {"table": "rental"}, "topics": {"order_created": "bike-booked"}}, "own")
    summary = json.loads(folders.summary.read_text()) | {"names": OrderNames.of_mapping(own).as_json()}
    folders.summary.write_text(json.dumps(summary))
    done = CliRunner().invoke(load("audit"), ["plan", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "(rental and bike-booked, not order and order-created). Give --mapping the file" in done.output
    assert not folders.plan.exists()
    mapping = tmp_path / "own.toml"
    mapping.write_text('[orders]\ntable = "rental"\n[topics]\norder_created = "bike-booked"\n')
    command = ["plan", "--out", str(tmp_path / "out"), "--mapping", str(mapping)]
    assert CliRunner().invoke(load("audit"), command).exit_code == 0


def test_half_a_character_of_a_message_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is to be sent again may hold "\\ud83d", the half of an emoji that was cut in two."""

    def send(row: dict[str, Any], planning: Planning) -> list[Step]:
        return [Step("message", "Send it.", "It may.", {"message": {"body": {"note": "cut \ud83d"}}})]

    monkeypatch.setitem(plan.REPAIRS, names.PAID_BUT_TIMED_OUT, send)
    run_with(tmp_path / "out", "o")
    run = run_of(tmp_path / "out")
    plan.write(run, PlanSources())
    (line,) = run.folders.plan.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["message"]["body"] == {"note": "cut \ud83d"}
