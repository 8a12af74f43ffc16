"""`tidewheel demo` as its users run it: from the orders to the audit, with faults, with sabotage."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.shop.carts.carts import open_redis
from services.shop.carts.redis_server import bundled_redis
from services.shop.demo.bugs import ARMED, subjects
from services.shop.demo.mishaps import CART_DEATH_COUNT, ORDER_DEATHS
from services.shop.demo.processes import tidewheel
from services.shop.demo.settings import Layout
from tests.acceptance.demo import INVOICE_COUNT, run

CASES = ("cart-not-cleared", "order-without-message", "message-without-order", "paid-but-timed-out")


def findings(summary: Any) -> dict[str, str]:
    """What the audit found: whom -> case."""
    return {found["subject_id"]: found["case"] for found in summary["findings"]}


def test_the_books_balance_in_spite_of_faults(faulty_run: tuple[Layout, Any]) -> None:
    _, summary = faulty_run
    invoices, orders = summary["invoices"], summary["orders"]
    assert summary["balanced"]
    assert invoices["invoices"] == INVOICE_COUNT == sum(invoices.values()) - invoices["invoices"]
    assert invoices["accepted"] == sum(orders.values()) == summary["audit"]["totals"]["orders"]
    assert all(orders[status] for status in ("paid", "timed_out", "cancelled"))
    assert not any(summary["in_flight"].values())
    assert summary["audit"]["cases"]["balanced"] == invoices["accepted"]


def test_every_fault_was_injected(faulty_run: tuple[Layout, Any]) -> None:
    _, summary = faulty_run
    deaths = {name: count for name, count in summary["faults"].items() if name.startswith("die-")}
    assert deaths == dict.fromkeys(ORDER_DEATHS, 1) | {"die-before-ack": CART_DEATH_COUNT}
    assert summary["restarts"] == len(ORDER_DEATHS) + CART_DEATH_COUNT
    assert summary["faults"]["repeat-same-id"]
    assert summary["faults"]["repeat-as-new"]


def test_nothing_came_early(faulty_run: tuple[Layout, Any]) -> None:
    _, summary = faulty_run
    for lateness in (summary["timeout_lateness"], summary["push_lateness"]):
        assert lateness["count"]
        assert lateness["early_count"] == 0


def test_every_refused_row_is_listed(faulty_run: tuple[Layout, Any]) -> None:
    layout, summary = faulty_run
    with layout.refused_rows.open() as file:
        listed = [row["reason"] for row in csv.DictReader(file)]
    assert {reason: listed.count(reason) for reason in listed} == summary["refused_rows"]


def test_the_report_is_there(faulty_run: tuple[Layout, Any]) -> None:
    layout, summary = faulty_run
    report = layout.audit / "runs" / summary["audit"]["run_id"] / "report.html"
    assert summary["audit"]["report"] == str(report)
    assert "<html" in report.read_text()[:1000]
    assert (layout.audit / "report.html").read_text() == report.read_text()


def test_a_report_of_sound_books_does_not_accuse_itself(faulty_run: tuple[Layout, Any]) -> None:
    _, summary = faulty_run
    assert summary["audit"]["totals"]["unreadable messages"] == 0
    page = Path(summary["audit"]["report"]).read_text()
    assert "What could not be read" not in page
    assert "pushes, by a schedule" in page, "what is sent is in the table of lateness, too"


@pytest.mark.skipif(
    not os.environ.get("TIDEWHEEL_LONG"), reason="make endurance runs it: a minute and a half"
)
def test_every_bug_is_found_and_nothing_else(tmp_path: Path) -> None:
    """Services do wrong things, the broker is away, services are lost; the driver knows to whom."""
    few = ("--count", "12", "--seed", "5", "--out", str(tmp_path / "out"))
    done = run(tmp_path, *few, "--bugs", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert list(summary["bugs"]) == list(ARMED)
    for case, compared in summary["bugs"].items():
        assert compared == {"expected": subjects(case), "missed": [], "surplus": []}
    assert summary["bugs_found"]
    assert not summary["balanced"]


@pytest.mark.skipif(not os.environ.get("TIDEWHEEL_LONG"), reason="make endurance runs it: over a minute")
def test_sabotage_is_found_with_another_redis_too(tmp_path: Path) -> None:
    few = ("--count", "40", "--seed", "3", "--out", str(tmp_path / "out"))
    wanted = [part for case in CASES for part in ("--sabotage", case)]
    with bundled_redis(tmp_path / "redis") as url:
        done = run(tmp_path, *few, *wanted, "--redis", url)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert findings(summary["audit"]) == {order_id: case for case, order_id in summary["sabotaged"].items()}
    assert set(summary["sabotaged"]) == set(CASES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--sabotage", "fire"),
            "TW-122 The value is not one of the choices. --sabotage fire: choose from cart-",
        ),
        (
            ("--bugs", "fire"),
            "TW-122 The value is not one of the choices. --bugs fire: choose from all, order-",
        ),
        (
            ("--bugs", "all", "--sabotage", "cart-not-cleared"),
            "TW-120 A setting cannot be used. --bugs and --sabotage do not go together.",
        ),
        (("--orders", "nowhere.csv"), "TW-121 The input file cannot be read. nowhere.csv"),
        (
            ("--orders", "broken.csv"),
            "TW-121 The input file cannot be read. broken.csv has no column InvoiceNo.",
        ),
        (("--out", "full"), "TW-120 A setting cannot be used. --out full is not empty."),
        (("--redis", "redis://127.0.0.1:1"), "TW-120 A setting cannot be used. Redis at redis://127.0.0.1:1"),
    ],
)
def test_bad_input_is_told_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "broken.csv").write_bytes(b"\x00\x01\x02")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1


def test_a_redis_that_holds_carts_is_left_alone(tmp_path: Path) -> None:
    with bundled_redis(tmp_path / "redis") as url:
        with open_redis(url) as redis:
            redis.hset("cart:C1", "85123A", 1)
        done = run(tmp_path, "--redis", url)
        assert done.returncode == 2
        assert "holds carts already" in done.stderr


def test_the_demo_never_loads_the_official_client(tmp_path: Path) -> None:
    modules = "services.cli.processes.demo, services.shop.demo.story"
    probe = f"import sys, {modules}; sys.exit('rocketmq' in sys.modules)"
    assert subprocess.run([*tidewheel()[:1], "-c", probe], env={"HOME": str(tmp_path)}).returncode == 0
