"""`tidewheel audit` as its users run it, over the stores of a shop that has really traded."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from services.shop.database import sqlite_url
from services.shop.demo.settings import Layout
from services.shop.redis_server import bundled_redis

ORDERS = 30
AWAIT_SECONDS = 240


@dataclass
class Traded:
    """The stores of a demo, its Redis running again, and the commands over them."""

    layout: Layout
    redis_url: str

    @property
    def stores(self) -> list[str]:
        return [
            *("--store", str(self.layout.store)),
            *("--orders", sqlite_url(self.layout.orders_database)),
            *("--pushes", sqlite_url(self.layout.pushes_database)),
            *("--carts", self.redis_url),
        ]

    def audit(self, out: Path, verb: str, *arguments: str, code: int = 0) -> str:
        """Run one verb; returns what it printed."""
        done = subprocess.run(
            [*COMMAND, verb, "--out", str(out), *arguments],
            capture_output=True, text=True, env=os.environ | {"COLUMNS": "160"},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Do something to the orders behind everybody's back."""
        engine = create_engine(sqlite_url(self.layout.orders_database))
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            found = [tuple(row) for row in result] if result.returns_rows else []
        engine.dispose()
        return found


COMMAND = [sys.executable, "-m", "services.cli.main", "audit"]


@pytest.fixture(scope="module")
def traded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traded]:
    folder = tmp_path_factory.mktemp("traded")
    layout = Layout(folder / "out")
    demo = (
        "demo",
        "--timeout",
        "2",
        "--count",
        str(ORDERS),
        "--seed",
        "5",
        "--out",
        str(layout.root),
        "--json",
    )
    done = subprocess.run(
        [*COMMAND[:-1], *demo],
        cwd=folder,
        env=os.environ | {"HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with bundled_redis(layout.redis) as redis_url:
        yield Traded(layout, redis_url)


def test_a_run_is_kept_listed_and_shown(traded: Traded, tmp_path: Path) -> None:
    printed = traded.audit(tmp_path, "run", *traded.stores)
    assert "The books balance." in printed
    (listed,) = json.loads(traded.audit(tmp_path, "ls", "--json"))
    assert listed["balanced"]
    assert listed["orders"] > 0
    assert listed["run_id"] in traded.audit(tmp_path, "ls")
    assert "The books balance." in traded.audit(tmp_path, "show", listed["run_id"])
    (order_id,) = traded.sql("SELECT order_id FROM orders LIMIT 1")[0]
    shown = traded.audit(tmp_path, "show", "--order", order_id)
    assert shown.startswith(f"{order_id}   balanced")
    assert "mq_audit_balanced_ratio" in (tmp_path / "audit.prom").read_text()


def test_books_are_closed_and_a_change_behind_them_is_found(traded: Traded, tmp_path: Path) -> None:
    """Sealed by one run; then one order is changed, and the next run names it, its window and its stage."""
    printed = traded.audit(
        tmp_path, "run", *traded.stores, "--seal", "--window", "1s", "--watermark", "0s", "--json"
    )
    assert json.loads(printed)["balanced"]
    assert "none has changed" in traded.audit(tmp_path, "verify-seals")
    ((order_id, total),) = traded.sql("SELECT order_id, total_pence FROM orders ORDER BY placed_ms LIMIT 1")
    traded.sql(f"UPDATE orders SET total_pence = total_pence + 1 WHERE order_id = '{order_id}'")
    try:
        traded.audit(tmp_path, "run", *traded.stores, "--window", "1s", code=1)
        found = json.loads(traded.audit(tmp_path, "verify-seals", "--json", code=1))
        (window,) = found["changed"]
        assert [(one["stage"], one["order_id"]) for one in window["changes"]] == [("placed", order_id)]
        assert "(placed of " + order_id in traded.audit(tmp_path, "verify-seals", code=1).replace("\n", " ")
        rows = json.loads(traded.audit(tmp_path, "show", "--case", "sealed-window-changed", "--json"))
        assert [one["subject_id"] for one in rows["findings"]] == [window["subject_id"]]
        traded.audit(tmp_path, "seal", "--window", "1s", code=1)
        traded.audit(tmp_path, "seal", "--window", "1s", "--accept-changes")
        traded.audit(tmp_path, "verify-seals")
    finally:
        traded.sql(f"UPDATE orders SET total_pence = {total} WHERE order_id = '{order_id}'")


def test_findings_come_with_a_plan(traded: Traded, tmp_path: Path) -> None:
    ((order_id,),) = traded.sql("SELECT order_id FROM orders WHERE status = 'PAID' ORDER BY order_id LIMIT 1")
    traded.sql(f"UPDATE orders SET timed_out_ms = due_ms WHERE order_id = '{order_id}'")
    try:
        traded.audit(tmp_path, "run", *traded.stores, "--plan", code=1)
    finally:
        traded.sql(f"UPDATE orders SET timed_out_ms = NULL WHERE order_id = '{order_id}'")
    (step,) = json.loads(traded.audit(tmp_path, "plan", "--json"))
    assert (step["kind"], step["subject_id"], step["case"]) == ("look", order_id, "paid-but-timed-out")
    assert "look" in traded.audit(tmp_path, "plan")
    (run_folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((run_folder / "plan.jsonl").read_text()) == step


WRONG = {
    "a duration": (("run", "--grace", "soon", "--store", "x", "--orders", "x", "--carts", "x"), "TW-120"),
    "a moment": (("run", "--from", "then", "--store", "x", "--orders", "x", "--carts", "x"), "TW-120"),
    "a mapping": (
        ("run", "--mapping", "none.toml", "--store", "x", "--orders", "x", "--carts", "x"),
        "TW-120",
    ),
    "a store": (("run", "--store", "x", "--orders", "sqlite:///x", "--carts", "redis://x"), "TW-104"),
    "no run": (("show",), "TW-150"),
    "a case": (("show", "--case", "fire"), "TW-122"),
    "nothing to seal": (("seal",), "TW-150"),
    "nothing to plan": (("plan",), "TW-150"),
    "a time of day": (
        ("schedule", "--at", "25:00", "--store", "x", "--orders", "x", "--carts", "x"),
        "TW-120",
    ),
    "a zone": (
        ("schedule", "--at", "2:00", "--zone", "Mars", "--store", "x", "--orders", "x", "--carts", "x"),
        "TW-120",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(tmp_path: Path, name: str) -> None:
    arguments, code = WRONG[name]
    out = ("--out", str(tmp_path / "out"))
    done = subprocess.run([*COMMAND, *arguments, *out], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(code)
    assert len(done.stderr.splitlines()) == 1


def eventually(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + AWAIT_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture
def scheduler(traded: Traded, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A scheduler that has just begun, with a first run at once."""
    options = ("--at", "02:00", "--zone", "Europe/London", "--keep", "1", "--metrics", "127.0.0.1:0", "--now")
    process = subprocess.Popen(
        [*COMMAND, "schedule", *options, "--out", str(tmp_path), *traded.stores, "--seal", "--window", "1s"],
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_the_scheduler_audits_measures_and_stops(
    scheduler: subprocess.Popen[str], traded: Traded, tmp_path: Path
) -> None:
    assert scheduler.stderr is not None
    announced = scheduler.stderr.readline()
    assert re.search(r"next \d{4}-\d\d-\d\d 02:00 (GMT|BST)", announced)
    found = re.search(r"http://\S+/metrics", announced)
    assert found, announced
    eventually(lambda: list((tmp_path / "runs").glob("*/summary.json")), scheduler)
    with urllib.request.urlopen(found[0]) as answer:
        assert "mq_audit_balanced_ratio" in answer.read().decode()
    second = [*COMMAND, "schedule", "--at", "03:00", "--out", str(tmp_path), *traded.stores]
    refused = subprocess.run(second, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr[:6]) == (2, "TW-160")
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(60) == 0


def test_a_run_is_interrupted_when_its_scheduler_stops(
    scheduler: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Its process ends, and what it had begun to read is gone."""
    eventually(lambda: list(tmp_path.glob("audit-*")), scheduler)
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(60) == 0
    assert not list(tmp_path.glob("audit-*"))
    assert not list(tmp_path.glob("runs/*/summary.json"))
