"""`tidewheel audit` as its users run it, over the stores of a shop that has really traded."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from services.shop.carts.redis_server import bundled_redis
from services.shop.database import sqlite_url
from services.shop.demo.settings import Layout
from tests.command import in_this_process, tidewheel

AWAIT_SECONDS = 600


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
        done = tidewheel("audit", verb, "--out", out, *arguments, environment={"COLUMNS": "160"})
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


@pytest.fixture
def traded(faulty_run: tuple[Layout, Any], tmp_path: Path) -> Iterator[Traded]:
    layout = Layout(tmp_path / "out")
    shutil.copytree(faulty_run[0].root, layout.root)
    with bundled_redis(layout.redis) as redis_url:
        yield Traded(layout, redis_url)


def runs_are_listed_and_shown(traded: Traded) -> None:
    out = traded.layout.audit
    (listed,) = json.loads(traded.audit(out, "ls", "--json"))
    assert listed["balanced"]
    assert listed["orders"] > 0
    assert listed["run_id"] in traded.audit(out, "ls")
    assert "The books balance." in traded.audit(out, "show", listed["run_id"])
    ((order_id,),) = traded.sql("SELECT order_id FROM orders LIMIT 1")
    assert traded.audit(out, "show", "--order", order_id).startswith(f"{order_id}   balanced")
    assert "mq_audit_balanced_ratio" in (out / "audit.prom").read_text()


def audit_again(traded: Traded) -> tuple[str, str]:
    """The shop's books are sealed; then two orders are changed behind everybody's back, and a scheduler that
    was told to run at once finds out. Gives the order with another sum, and the paid one that timed out."""
    out = traded.layout.audit
    assert "identities" in traded.audit(out, "seal", "--window", "1s", "--watermark", "0s")
    assert "none has changed" in traded.audit(out, "verify-seals")
    paid = "SELECT order_id FROM orders WHERE status = 'PAID' ORDER BY placed_ms, order_id LIMIT 2"
    (changed,), (timed_out,) = traded.sql(paid)
    traded.sql(f"UPDATE orders SET total_pence = total_pence + 1 WHERE order_id = '{changed}'")
    traded.sql(f"UPDATE orders SET timed_out_ms = paid_ms + 86400000 WHERE order_id = '{timed_out}'")
    options = ("--plan", "--window", "1s", "--metrics", "127.0.0.1:0", "--keep", "1")
    with scheduling(traded, out, *options) as (scheduler, metrics):
        eventually(lambda: "plan" in {path.stem for path in out.glob("runs/*/*")}, scheduler)
        eventually(lambda: "audit ended" in (out / "said").read_text(), scheduler)
        with urllib.request.urlopen(metrics) as answer:
            (out / "scraped").write_bytes(answer.read())
        second = [*COMMAND, "schedule", "--at", "03:00", "--out", str(out), *traded.stores]
        refused = subprocess.run(second, capture_output=True, text=True)
        assert (refused.returncode, refused.stderr[:6]) == (2, "TW-160")
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(AWAIT_SECONDS) == 0
    return changed, timed_out


def the_scheduler_has_kept_the_newest_run_and_measured_it(traded: Traded) -> None:
    (listed,) = json.loads(traded.audit(traded.layout.audit, "ls", "--json"))
    assert not listed["balanced"]
    assert (
        'mq_audit_cases{audit="audit",kind="paid-but-timed-out"} 1.0'
        in (traded.layout.audit / "scraped").read_text()
    )


def a_change_behind_closed_books_is_named_until_it_is_accepted(traded: Traded, changed: str) -> None:
    out = traded.layout.audit
    found = json.loads(traded.audit(out, "verify-seals", "--json", code=1))
    (window,) = found["changed"]
    assert [(one["stage"], one["order_id"]) for one in window["changes"]] == [("placed", changed)]
    told = traded.audit(out, "verify-seals", code=1)
    assert re.search(rf"{changed} +changed: total was [\d,]+\.\d\d and is [\d,]+\.\d\d\n", told)
    assert "In sum 0.01 more than was sealed." in told
    shown = json.loads(traded.audit(out, "show", "--case", "sealed-window-changed", "--json"))
    assert [one["subject_id"] for one in shown["findings"]] == [window["subject_id"]]
    traded.audit(out, "seal", "--window", "1s", code=1)
    traded.audit(out, "seal", "--window", "1s", "--accept-changes")
    traded.audit(out, "verify-seals")


def findings_come_with_a_plan(traded: Traded, timed_out: str) -> None:
    out = traded.layout.audit
    steps = {one["case"]: one for one in json.loads(traded.audit(out, "plan", "--json"))}
    assert {name: step["kind"] for name, step in steps.items()} == {
        "paid-but-timed-out": "look",
        "sealed-window-changed": "look",
    }
    assert steps["paid-but-timed-out"]["subject_id"] == timed_out
    assert "for a person" in traded.audit(out, "plan")


def test_a_shops_books_from_the_first_run_to_the_repair(traded: Traded, tmp_path: Path) -> None:
    """One story, since a shop that trades and its audits take a while."""
    runs_are_listed_and_shown(traded)
    changed, timed_out = audit_again(traded)
    the_scheduler_has_kept_the_newest_run_and_measured_it(traded)
    a_change_behind_closed_books_is_named_until_it_is_accepted(traded, changed)
    findings_come_with_a_plan(traded, timed_out)
    a_run_is_interrupted_when_its_scheduler_stops(traded, tmp_path / "interrupted")


WRONG = {
    "a duration": (("run", "--grace", "soon", "--store", "x", "--orders", "x", "--carts", "x"), "TW-120"),
    "a moment": (("run", "--from", "then", "--store", "x", "--orders", "x", "--carts", "x"), "TW-120"),
    "a moment to come": (("run", "--from", "2999-01-01", "--store", "x", "--orders", "x"), "TW-120"),
    "an end before its begin": (
        ("run", "--from", "1h ago", "--to", "2h ago", "--store", "x", "--orders", "x"),
        "TW-120",
    ),
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
    done = in_this_process("audit", *arguments, *out, environment={}, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(code)
    assert len(done.stderr.splitlines()) == 1


def eventually(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + AWAIT_SECONDS
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@contextmanager
def scheduling(traded: Traded, out: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A scheduler that has just begun, with a first run at once; and where its metrics are."""
    out.mkdir(exist_ok=True)
    when = ("--at", "02:00", "--zone", "Europe/London", "--now")
    command = [*COMMAND, "schedule", *when, *options, "--out", str(out), *traded.stores]
    with open(out / "said", "wb") as said:
        process = subprocess.Popen(command, stderr=said)
    try:
        eventually(lambda: "stops it" in (out / "said").read_text(), process)
        announced = (out / "said").read_text()
        assert re.search(r"next \d{4}-\d\d-\d\d 02:00 (GMT|BST)", announced)
        found = re.search(r"http://\S+/metrics", announced)
        yield process, found[0] if found else ""
    finally:
        process.kill()
        process.wait()


def a_run_is_interrupted_when_its_scheduler_stops(traded: Traded, out: Path) -> None:
    """Its process ends, and what it had begun to read is gone."""
    with scheduling(traded, out) as (scheduler, _):
        eventually(lambda: list(out.glob("audit-*")), scheduler)
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(AWAIT_SECONDS) == 0
    assert not list(out.glob("audit-*"))
    assert not list(out.glob("runs/*/summary.json"))
