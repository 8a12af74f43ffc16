"""The console of a broker: in a child process that the first look at `/` starts, and that ends with it."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from services.process.ports import holder_of
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def serves(browser: Browser) -> bool:
    host, _, port = browser.site.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


def until_gone(browser: Browser) -> None:
    for _ in range(600):
        if not serves(browser):
            return
        time.sleep(0.05)
    pytest.fail("the console goes on")


def listener(browser: Browser) -> int:
    """Return the process that serves a browser's site."""
    return int(holder_of(int(browser.site.rpartition(":")[2])).split()[1])


def test_a_look_at_the_http_address_leads_in(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        browser = Browser(f"http://{broker.http}/")
        assert browser.entered.status == 200
        assert "keeping up" in browser.entered.text
        assert browser.site != f"http://{broker.http}"
        again = Browser(f"http://{broker.http}/")
        assert (again.entered.status, again.site) == (200, browser.site), "one console for all looks"
        foreign = browser.open(f"http://{broker.http}/", Sec_Fetch_Site="cross-site")
        assert (foreign.status, "key=" in foreign.url) == (403, False)
        os.kill(listener(browser), signal.SIGKILL)
        until_gone(browser)
        anew = Browser(f"http://{broker.http}/")
        assert anew.entered.status == 200
        broker.kill()
        until_gone(anew)
    finally:
        broker.stop()


def test_a_broker_that_asks_for_a_token_leads_to_the_sign_in(tmp_path: Path) -> None:
    token = tmp_path / "token"
    broker = BrokerProcess(tmp_path, ("--http-token", str(token)))
    broker.start()
    try:
        browser = Browser(f"http://{broker.http}/")
        assert (browser.entered.status, list(browser.cookies)) == (401, [])
        assert "Sign in" in browser.entered.text
        assert browser.post("/sign-in", token=token.read_text().strip()).status == 200
    finally:
        broker.stop()
    until_gone(browser)
