"""Audits of a folder: runs, cases, findings, an order with its evidence, the report, the seals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.layout import RunFolders
from spark_jobs.seals.files import Account, Seal, SealFolder
from tests.audit_runs import SUMMARY
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import DIRECT, BrokerProcess

RUN, AGAIN = "20261121T020000Z", "20261122T020000Z"
STYLE = "body { color: red; }"
REPORT = f"<!doctype html><title>r</title><style>{STYLE}</style><p>&lt;style&gt;"
EVENT = {"physical_offset": 7, "store_ms": 1_763_700_000_000, "kind": "half", "topic": "<t>", "note": "n"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 60 findings, one that balances, and two seals."""
    folder = tmp_path_factory.mktemp("audits") / "out"
    rows = [
        {
            "subject": "order",
            "subject_id": f"<o{at}>",
            "order_id": f"<o{at}>",
            "case": "fired-late",
            "why": "Late.",
        }
        | {"total_pence": 1250, "currency": "GBP", "due_ms": 1_763_700_000_000, "timeline": [EVENT]}
        for at in range(60)
    ]
    for run_id, cases, found in (
        (RUN, {"fired-late": 60, "balanced": 40}, rows),
        (AGAIN, {"balanced": 100}, []),
    ):
        folders = RunFolders(folder, run_id)
        for one in (folders.folder, folders.findings):
            one.mkdir(parents=True)
        about = {"balanced": not found, "totals": {"orders": 100}, "cases": cases}
        folders.summary.write_text(json.dumps(SUMMARY | about))
        folders.report.write_text(REPORT)
        if found:
            pq.write_table(pa.Table.from_pylist(found), folders.findings / "part.parquet")
    seals, before = SealFolder(folder), None
    for number in (1, 2):
        seal = Seal(number, RUN, 1, 300_000, 5, 0, 0, 300_000 * number, before, Account())
        seals.finish(seals.begin(number), seal)
        before = seal.digest
    return folder


@pytest.fixture(scope="module")
def audits(broker: BrokerProcess, out: Path) -> Iterator[Browser]:
    process = ConsoleProcess(os.environ, broker.http, "--audits", str(out))
    yield Browser(process.link)
    assert process.stop() == 0


def test_an_empty_folder_says_how_a_run_is_made(browser: Browser) -> None:
    page = browser.open("/audits").text
    assert "tidewheel audit run" in page
    assert "tidewheel audit schedule --at 02:00" in page
    assert browser.open("/audits/run").status == 404
    assert browser.open("/audits/report?run=../x").status == 404


def test_runs_cases_and_orders_are_shown(audits: Browser) -> None:
    shown = audits.model("/audits")
    assert [(one["run_id"], one["is_balanced"], one["findings"]) for one in shown["runs"]] == [
        (AGAIN, True, 0),
        (RUN, False, 60),
    ]
    run = audits.model(f"/audits/run?run={RUN}")
    assert (len(run["findings"]), run["next"]) == (50, f"run={RUN}&after=50")
    assert len(audits.model(f"/audits/run?{run['next']}")["findings"]) == 10
    assert audits.model(f"/audits/run?run={RUN}&case=fired-late")["findings"]
    page = audits.open(f"/audits/run?run={RUN}").text
    assert "&lt;o0&gt;" in page
    assert "<o0>" not in page
    order = audits.model(f"/audits/order?run={RUN}&order=%3Co7%3E")
    assert (order["case"], order["facts"]["due_ms"]) == ("fired-late", "1763700000000")
    assert "12.50" in order["facts"]["total"]
    assert order["timeline"][0]["physical_offset"] == "7"
    assert audits.open(f"/audits/order?run={RUN}&order=none").status == 404
    assert audits.open(f"/audits/run?run={RUN}&after=x").status == 400
    assert "60 findings" not in audits.open("/").text, "the newest run balances"


def test_a_report_keeps_to_the_policy_of_the_console(audits: Browser, browser: Browser) -> None:
    report = audits.open(f"/audits/report?run={RUN}")
    assert "default-src 'self'" in report.headers["Content-Security-Policy"]
    assert "unsafe" not in report.headers["Content-Security-Policy"]
    address = f"/audits/report.css?run={RUN}"
    assert f'<link rel="stylesheet" href="{address}">' in report.text
    assert "<style>" not in report.text
    style = audits.open(address)
    assert (style.text, style.headers["Content-Type"]) == (STYLE, "text/css; charset=utf-8")
    stranger = Browser(browser.site + "/sign-in")
    assert stranger.open(f"/audits/report?run={RUN}").status == 401


def test_seals_are_shown_and_a_broken_chain_is_said(audits: Browser, out: Path) -> None:
    shown = audits.model("/audits")
    assert [one["number"] for one in shown["seals"]] == [2, 1]
    assert len(shown["seals"][0]["digest"]) == 64
    path = SealFolder(out).path(1, "seal.json")
    whole = path.read_text()
    path.write_text(whole.replace('"watermark_ms": 5', '"watermark_ms": 6'))
    broken = audits.model("/audits")
    assert broken["seals"] == []
    assert "do not have the digest" in broken["trouble"]
    assert "do not have the digest" in audits.open("/audits").text
    path.write_text(whole)


def test_only_an_administrator_sees_audits(out: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    broker = BrokerProcess(tmp_path, ("--http-token", str(token)))
    broker.start()
    administrator = token.read_text().strip()
    process = ConsoleProcess(os.environ, broker.http, "--audits", str(out))
    try:
        browser = Browser(process.url + "/sign-in")
        assert browser.post("/sign-in", token=administrator).status == 200
        assert browser.open("/audits").status == 200
        call(broker, administrator, "users", {"name": "shop"})
        call(broker, administrator, "rules", {"user": "shop", "topics": ["*"], "verbs": ["admin"]})
        of_user = call(broker, administrator, "tokens", {"user": "shop"})["token"]
        other = Browser(process.url + "/sign-in")
        other.post("/sign-in", token=of_user)
        for path in ("/audits", f"/audits/run?run={RUN}", f"/audits/report?run={RUN}"):
            refused = other.open(path)
            assert (refused.status, "an administrator may see them" in refused.text) == (403, True)
    finally:
        process.stop()
        broker.stop()


def call(broker: BrokerProcess, token: str, noun: str, body: dict[str, Any]) -> Any:
    """Make a user, rules or a token."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = Request(f"http://{broker.http}/api/auth/{noun}", json.dumps(body).encode(), headers)
    with DIRECT.open(request) as answer:
        return json.load(answer)
