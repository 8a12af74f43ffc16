"""The first page: what `tidewheel status` says, signed in by a one-time link; nobody else gets in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command import tidewheel
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess

PAGE = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def test_the_link_that_is_printed_signs_in_once(console: ConsoleProcess, browser: Browser) -> None:
    assert browser.entered.status == 200
    assert "Overview" in browser.entered.text
    again = Browser(console.link)
    assert again.entered.status == 403
    assert "used already" in again.entered.text
    assert not list(again.cookies)


def test_the_overview_says_what_the_command_says(browser: Browser, broker: BrokerProcess) -> None:
    said = json.loads(tidewheel("status", "--json", "--http", broker.http).stdout)
    shown = browser.model("/")
    assert shown["state"] == said["state"]
    assert [row["name"] for row in shown["rows"]] == [row["name"] for row in said["rows"]]
    assert int(shown["as_of_ms"]) > 0
    assert [line["title"] for line in shown["lines"]][:2] == ["Stored a second", "Received a second"]
    assert next(line for line in shown["lines"] if line["title"] == "Timers pending")["now"] == 0
    page = browser.open("/")
    assert page.text.count("<figure>") == len(shown["lines"])
    assert all(row["name"] in page.text for row in said["rows"])
    assert page.headers["Content-Security-Policy"] == PAGE
    assert page.headers["Cache-Control"] == "no-store"


def test_alarms_lead_to_what_they_concern(browser: Browser, broker: BrokerProcess) -> None:
    for name in ("sale-1", "sale-2"):
        broker.post("/api/topics", {"name": name})
        broker.post(f"/api/topics/{name}/hold", {"reason": "wrong price"})
    [held] = [row for row in browser.model("/")["act_now"] if row["name"] == "held"]
    pages = [f"/topics/change?name=sale-{number}#release" for number in (1, 2)]
    assert [one["page"] for one in held["things"]] == pages
    assert all(f'href="{page}"' in browser.open("/").text for page in pages)
    for name in ("sale-1", "sale-2"):
        broker.post(f"/api/topics/{name}/release", {})


def test_the_cookie_is_for_this_site_and_for_no_script(browser: Browser) -> None:
    (cookie,) = browser.cookies
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "strict"


def test_without_a_session_there_is_only_the_sign_in(console: ConsoleProcess) -> None:
    stranger = Browser(console.url + "/sign-in")
    assert "Sign in" in stranger.entered.text
    assert stranger.open("/").status == 401
    twin = stranger.open("/", Accept="application/json")
    assert (twin.status, twin.json["code"]) == (401, "TW-180")
    assert stranger.open("/static/console.css").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example"},
    ],
)
def test_a_foreign_page_reads_nothing(browser: Browser, headers: dict[str, str]) -> None:
    answer = browser.open("/", **headers)
    assert answer.status == 403
    assert "keeping up" not in answer.text


def test_an_act_without_an_origin_is_refused(browser: Browser) -> None:
    assert browser.open("/sign-out", b"").status == 403
    assert browser.open("/").status == 200


def test_a_path_that_is_no_page_says_so(browser: Browser) -> None:
    answer = browser.open("/<script>alert(1)</script>")
    assert answer.status == 404
    assert "<script>alert" not in answer.text


def test_users_sign_in_with_their_tokens_and_out(tmp_path: Path) -> None:
    token = tmp_path / "token"
    broker = BrokerProcess(tmp_path, ("--http-token", str(token)))
    broker.start()
    environment = {"TIDEWHEEL_HTTP": broker.http, "TIDEWHEEL_HTTP_TOKEN": str(token)}
    tidewheel("auth", "user", "add", "ann", environment=environment)
    made = json.loads(tidewheel("auth", "token", "add", "ann", "--json", environment=environment).stdout)
    console = ConsoleProcess(os.environ, broker.http)
    try:
        ann = Browser(console.url + "/sign-in")
        wrong = ann.post("/sign-in", token="tw_wrong")
        assert wrong.status == 401
        assert made["token"] not in wrong.text
        inside = ann.post("/sign-in", token=made["token"])
        assert inside.status == 200
        assert "ann" in inside.text
        assert made["token"] not in inside.text + str(list(ann.cookies))
        tidewheel("auth", "token", "revoke", made["id"], environment=environment)
        assert ann.open("/").status == 401
        by_link = Browser(console.link)  # made without a token: the broker asks for one
        assert "Sign in" in by_link.entered.text
        administrator = Browser(console.url + "/sign-in")
        assert administrator.post("/sign-in", token=token.read_text().strip()).status == 200
        assert "Sign in" in administrator.post("/sign-out").text
        assert administrator.open("/").status == 401
    finally:
        console.stop()
        broker.stop()


def test_a_broker_that_is_gone_is_explained_and_heals(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    console = ConsoleProcess(os.environ, broker.http)
    try:
        browser = Browser(console.link)
        broker.kill()
        gone = browser.open("/")
        assert gone.status == 503
        assert "There is no Tidewheel HTTP interface" in gone.text
        assert 'http-equiv="refresh"' in gone.text
        assert browser.open("/", Accept="application/json").json["code"] == "TW-123"
        broker.start()
        assert browser.open("/").status == 200
    finally:
        console.stop()
        broker.stop()


def test_others_machines_are_not_served() -> None:
    done = tidewheel("console", "--listen", "0.0.0.0:0")
    assert done.returncode == 2
    assert "ssh -L" in done.stderr
