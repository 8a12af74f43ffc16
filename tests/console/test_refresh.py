"""An open page in Chromium: a refresh keeps the values of changed fields, and an old page has a notice."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.console.chromium import Pipe, Tab
from tests.console_process import ConsoleProcess
from tidewheel.testing.process import BrokerProcess

REFRESH_SECONDS: Final = 5
SHOWN_AT: Final = "document.querySelector('footer time').dateTime"
GREEN: Final = """(() => {
  const probe = document.createElement('i');
  probe.style.color = 'var(--ok)';
  document.body.append(probe);
  const green = getComputedStyle(probe).color;
  probe.remove();
  const parts = [...document.querySelectorAll('.lights .ok, .lights .ok .state, p.ok')];
  return parts.map((one) => getComputedStyle(one)).filter((style) => style.color === green
    || style.borderLeftColor === green).length;
})()"""
"""The number of green lights and sentences."""


def site(tab: Tab) -> str:
    return str(tab.run("location.origin"))


def until_refreshed(tab: Tab) -> None:
    tab.run(f"window.shownAt = {SHOWN_AT}")
    tab.until(f"{SHOWN_AT} !== window.shownAt")


@pytest.mark.parametrize(
    ("page", "field", "change", "kept"),
    [
        ("topics", "#create select", "field.value = 'FIFO'", "field.value === 'FIFO'"),
        ("timers", "input[name=key]", "field.value = 'order:7'", "field.value === 'order:7'"),
        ("timers", "input[name=held]", "field.click()", "field.checked"),
    ],
)
def test_what_was_chosen_or_typed_stays(tab: Tab, page: str, field: str, change: str, kept: str) -> None:
    tab.open(f"{site(tab)}/{page}")
    tab.until(f"document.querySelector('{field}')")
    found = f"document.querySelector('{field}')"
    tab.run(f"{{ const field = {found}; field.focus(); {change}; field.blur(); }}")
    time.sleep(2 * REFRESH_SECONDS)
    assert tab.run(f"((field) => {kept})({found})"), "the refresh has thrown it away"
    tab.shows("not refreshed while")
    assert tab.run(GREEN) == 0, "the page is not refreshed, and its lights are green"
    tab.run(f"{found}.form.reset()")
    until_refreshed(tab)
    assert "not refreshed while" not in tab.text()


def test_a_page_whose_console_is_gone_says_so_above_its_content(pipe: Pipe, broker: BrokerProcess) -> None:
    console, tab = ConsoleProcess(os.environ, broker.http), Tab(pipe)
    try:
        tab.open(console.link)
        tab.shows("Nothing needs a person.")
        assert tab.run(GREEN) > 1
    finally:
        console.stop()
    tab.shows("Not up to date: the console does not answer.")
    assert tab.run(GREEN) == 0
    assert tab.run("document.querySelector('#stale').getAttribute('role')") == "status"
    assert tab.run("document.querySelector('#stale').getBoundingClientRect().top < 200")
    shown_at = tab.run("document.querySelector('footer time').textContent")
    assert shown_at in tab.run("document.querySelector('#stale').textContent")
    tab.shows("If it has ended, start it again: tidewheel console")
    tab.close()


def test_a_page_of_a_broker_whose_console_is_gone_says_where_a_new_one_is(pipe: Pipe, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    address, tab = f"http://{broker.http}/", Tab(pipe)
    try:
        tab.open(address)
        tab.shows("keeping up")
        broker.kill()
        tab.shows("Not up to date: the console does not answer.")
        tab.shows(f"A broker that was restarted has a new console: open {address} in a new tab.")
        broker.start()
        tab.open(address)
        tab.shows("keeping up")
    finally:
        tab.close()
        broker.stop()


def test_a_page_whose_broker_is_gone_says_so_and_heals(pipe: Pipe, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    console, tab = ConsoleProcess(os.environ, broker.http), Tab(pipe)
    try:
        tab.open(console.link)
        tab.shows("keeping up")
        broker.kill()
        tab.shows("Not up to date: TW-123")
        assert tab.run(GREEN) == 0
        broker.start()
        tab.until("document.querySelector('#stale').textContent === ''")
        assert tab.run(GREEN) > 1
    finally:
        tab.close()
        console.stop()
        broker.stop()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("new Response('Internal Server Error', {status: 500})", "the console answers with status 500."),
        ("new Promise(() => {})", "the console has not answered for 15 seconds."),
    ],
)
def test_a_page_whose_console_fails_says_so(tab: Tab, answer: str, said: str) -> None:
    tab.run(f"window.fetch = async () => {answer}")
    tab.shows(f"Not up to date: {said}")
    assert tab.run(GREEN) == 0
