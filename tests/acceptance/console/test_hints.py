"""Hints of pages: no session, a broker that is gone, and commands with the address of the broker."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Browser]:
    """A browser that signed in at the console of a broker that is killed."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    console = ConsoleProcess(os.environ, broker.http)
    browser = Browser(console.link)
    broker.kill()
    yield browser
    console.stop()
    broker.stop()


@pytest.mark.parametrize("path", ["/groups", "/dead-letters", "/transactions"])
def test_a_command_names_the_address_of_the_broker(
    browser: Browser, broker: BrokerProcess, path: str
) -> None:
    page = browser.open(path).text
    assert f"http://{broker.http}/api/" in page
    assert "127.0.0.1:8088" not in page


@pytest.mark.parametrize("path", ["/groups", "/dead-letters", "/transactions"])
def test_a_command_has_no_token_if_the_broker_asks_for_none(browser: Browser, path: str) -> None:
    page = html.unescape(browser.open(path).text)
    assert "<pre>curl --json" in page
    assert "Authorization" not in page


def test_a_command_works_as_shown_if_the_broker_asks_for_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    broker = BrokerProcess(tmp_path, ("--http-token", str(token)))
    broker.start()
    console = ConsoleProcess(os.environ, broker.http, TIDEWHEEL_HTTP_TOKEN=str(token))
    try:
        browser = Browser(console.link)
        for path in ("/groups", "/dead-letters", "/transactions"):
            (command,) = re.findall("<pre>(curl .*)</pre>", html.unescape(browser.open(path).text))
            environment = os.environ | {"TIDEWHEEL_HTTP_TOKEN": str(token)}
            ran = subprocess.run(
                command, shell=True, capture_output=True, text=True, env=environment, timeout=60, check=False
            )
            assert json.loads(ran.stdout).get("code") not in ("TW-181", "TW-182"), ran
    finally:
        console.stop()
        broker.stop()


def test_no_session_is_told_as_such(console: ConsoleProcess, broker: BrokerProcess) -> None:
    page = Browser(f"{console.url}/topics").entered
    assert page.status == 401
    assert "There is no session here (any more)" in page.text
    assert f"open http://{broker.http}/ again" in page.text
    assert "does not accept" not in page.text
    told = Browser(f"{console.url}/topics?as=json").entered
    assert (told.status, "There is no session here" in told.json["message"]) == (401, True)


def test_an_action_that_was_never_sent_is_told_as_such(gone: Browser) -> None:
    page = gone.post("/topics/create", name="orders", type="NORMAL", queues="1")
    assert page.status == 503
    assert "Nothing was sent, so nothing was changed" in page.text
    assert "not known" not in page.text
