"""`tidewheel audit` as a command: what it prints, writes and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from commitlog import store_format
from services.cli.main import main
from spark_jobs.layout import RunFolders

Shop = Any


def arguments(shop: Shop, **changed: str) -> list[str]:
    given = {
        "store": str(shop.store),
        "orders": shop.orders_url,
        "carts": shop.redis_url,
        "pushes": shop.pushes_url,
        "out": str(shop.folder / "out"),
    } | changed
    return ["audit", *(word for name, value in given.items() for word in (f"--{name}", value))]


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A PATH with everything that /usr/bin and /bin have, except Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in (program for place in ("/usr/bin", "/bin") for program in Path(place).iterdir()):
        link = folder / program.name
        if not program.name.startswith("java") and not link.is_symlink():
            link.symlink_to(program)
    return str(folder)


def test_a_finding_exits_with_1_and_is_in_every_output_also_on_the_packaged_java(
    traded: Shop, path_without_java: str
) -> None:
    traded.set_order("p1", timed_out_ms=traded.now_ms)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli.main", *arguments(traded), "--json"],
        env=environment | {"PATH": path_without_java},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    summary = json.loads(ran.stdout)
    assert [(one["order_id"], one["case"]) for one in summary["findings"]] == [("p1", "paid-but-timed-out")]
    assert not summary["balanced"]
    assert "Traceback" not in ran.stderr
    assert "WARN" not in ran.stderr
    out = traded.folder / "out"
    written = {"audit.prom", "findings", "orders", "report.html", "runs"}
    assert {path.name for path in out.iterdir()} == written
    run = RunFolders(out, summary["run_id"])
    assert sorted(path.name for path in run.folder.iterdir()) == ["report.html", "spark.log", "summary.json"]
    assert json.loads(run.summary.read_text()) == summary
    assert ds.dataset(run.findings).to_table()["order_id"].to_pylist() == ["p1"]
    assert ds.dataset(run.orders).count_rows() == 4
    page = (out / "report.html").read_text()
    assert "The books do not balance." in page
    assert "http://" not in page
    assert "https://" not in page


WRONG = {
    "missing store": ({"store": "/nowhere/store"}, "TW-104"),
    "not a store": ({"store": "/usr"}, "TW-104"),
    "no such database file": ({"orders": "sqlite:////nowhere/orders.db"}, "TW-124"),
    "not a database address": ({"orders": "orders.db"}, "TW-124"),
    "no such push database": ({"pushes": "sqlite:////nowhere/pushes.db"}, "TW-124"),
    "no Redis there": ({"carts": "redis://127.0.0.1:1/0"}, "TW-124"),
    "not a Redis address": ({"carts": "127.0.0.1"}, "TW-124"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line_with_a_code(
    shop: Shop, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    changed, code = WRONG[name]
    with pytest.raises(SystemExit) as exited:
        main(arguments(shop, **changed))
    assert exited.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(code)
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert not (shop.folder / "out").exists()


def test_a_store_of_a_newer_format_is_refused(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    (shop.store / "format").write_text(f"tidewheel {store_format.VERSION + 1}\n")
    with pytest.raises(SystemExit) as exited:
        main(arguments(shop))
    assert exited.value.code == 2
    assert capsys.readouterr().err.startswith("TW-105")


def test_a_store_without_records_is_refused(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "format").write_text("tidewheel 1\n")
    with pytest.raises(SystemExit) as exited:
        main(arguments(shop, store=str(empty)))
    assert exited.value.code == 2
    assert "holds no records yet" in capsys.readouterr().err


def test_a_missing_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["audit", "--store", "x"])
    assert exited.value.code == 2
    assert "--orders" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_line(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    (shop.folder / "file").write_text("in the way")
    with pytest.raises(SystemExit) as exited:
        main(arguments(shop, out=str(shop.folder / "file" / "out")))
    assert exited.value.code == 2
    assert capsys.readouterr().err.startswith("TW-120")
