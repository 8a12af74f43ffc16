"""Pages of other origins in the browser of an administrator: they read nothing and change nothing.

`evil.example` is another site. A page at another port of 127.0.0.1 belongs to the same site, so the browser
adds the cookie of the console to its requests.
"""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.console.chromium import Pipe, Tab, new_profile
from tests.console.conftest import Stage
from tests.console.verbs import ACTIONS, CASES, PAGES
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess

HOSTS: Final = ("evil.example", "127.0.0.1")
SESSION: Final = ("/sign-in", "/sign-out")
SEND: Final = """(async (url, fields) => {
  const body = new URLSearchParams(fields), told = [];
  for (const mode of ["no-cors", "cors"])
    told.push(await fetch(url, {method: "POST", mode, credentials: "include", body})
      .then((one) => one.type, () => "refused"));
  const form = document.createElement("form"), frame = document.createElement("iframe");
  Object.assign(form, {method: "post", action: url, target: "frame"});
  frame.name = "frame";
  for (const [name, value] of Object.entries(fields))
    form.append(Object.assign(document.createElement("input"), {type: "hidden", name, value}));
  document.body.append(frame, form);
  const loaded = new Promise((done) => frame.addEventListener("load", done, {once: true}));
  form.submit();
  await loaded;
  told.push(frame.contentDocument === null ? "refused" : frame.contentDocument.body.innerText);
  window.form = form;
  return told;
})"""
READ: Final = """(async (url) => {
  const told = {};
  told.fetch = await fetch(url, {credentials: "include"}).then((one) => one.text(), () => "refused");
  const frame = document.createElement("iframe");
  const loaded = new Promise((done) => frame.addEventListener("load", done, {once: true}));
  frame.src = url;
  document.body.append(frame);
  await loaded;
  told.frame = frame.contentDocument === null ? "refused" : frame.contentDocument.body.innerText;
  const source = new EventSource(url, {withCredentials: true});
  told.events = await new Promise((done) => {
    source.onerror = () => done("refused");
    source.onmessage = (one) => done(one.data);
  });
  source.close();
  const script = document.createElement("script");
  told.script = await new Promise((done) => {
    script.onerror = () => done("refused");
    script.onload = () => done("loaded");
    script.src = url;
    document.body.append(script);
  });
  return told;
})"""
OPEN: Final = """((url) => { window.other = window.open(url); return window.other !== null; })"""
OPENED: Final = """(() => {
  try { return String(window.other.document.body.innerText); } catch { return "refused"; }
})()"""


class Blank(http.server.BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>hostile</title><body></body>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a hostile site on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def lure(stage: Stage, port: int, host: str, profile: str | None = None) -> Tab:
    """Return a tab with a hostile page, beside the administrator's tab."""
    tab = Tab(stage.pipe, profile=stage.tab("admin").profile if profile is None else profile)
    tab.open(f"http://{host}:{port}/")
    tab.until("document.title === 'hostile'")
    return tab


@pytest.mark.parametrize(("path", "verb"), ACTIONS, ids=[f"{path}/{verb}" for path, verb in ACTIONS])
def test_a_hostile_page_does_nothing(
    stage_of: Callable[[str], Stage], port: int, path: str, verb: str
) -> None:
    stage, action = stage_of(path), f"{path}/{verb}"
    case = CASES[path, verb](stage.world)
    fields = stage.form(case.page, action) | case.typed
    for host in HOSTS:
        tab = lure(stage, port, host)
        told = tab.run(f"{SEND}({json.dumps(stage.url + action)}, {json.dumps(fields)})")
        assert told == ["opaque", "refused", "refused"] or told == ["refused"] * 3
        tab.run("form.target = '_self'; form.submit()")
        tab.shows("TW-231")
        tab.close()
        assert not case.is_done(), host


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/?as=json", "/sign-in", "/audits/report"])
def test_a_hostile_page_reads_nothing(stage: Stage, port: int, host: str, path: str) -> None:
    tab = lure(stage, port, host)
    told = tab.run(f"{READ}({json.dumps(stage.url + path)})")
    assert told == {"fetch": "refused", "frame": "refused", "events": "refused", "script": "refused"}
    assert tab.run(f"{OPEN}({json.dumps(stage.url + path)})")
    tab.until(f"{OPENED} === 'refused'")
    tab.run("window.other.close()")
    tab.close()


@pytest.mark.parametrize("host", HOSTS)
def test_a_hostile_page_signs_nobody_in_or_out(stage: Stage, port: int, host: str) -> None:
    admin, visitor = stage.tab("admin"), new_profile(stage.pipe)
    for profile in (admin.profile, visitor):
        for path in SESSION:
            tab = lure(stage, port, host, profile)
            tab.run(
                f"{SEND}({json.dumps(stage.url + path)}, {json.dumps({'token': stage.tokens['viewer']})})"
            )
            tab.run("form.target = '_self'; form.submit()")
            tab.shows("TW-231")
            tab.close()
    admin.open(f"{stage.url}/topics")
    assert admin.run("document.querySelector('.session bdi').textContent") == "admin"
    tab = Tab(stage.pipe, profile=visitor)
    tab.open(f"{stage.url}/topics")
    tab.shows("Sign in first.")
    tab.close()


@pytest.mark.parametrize("host", HOSTS)
def test_a_hostile_page_does_not_enter_by_a_link(
    pipe: Pipe, port: int, tmp_path_factory: pytest.TempPathFactory, host: str
) -> None:
    broker = BrokerProcess(tmp_path_factory.mktemp("link"))
    broker.start()
    console, tab = ConsoleProcess(os.environ, broker.http), Tab(pipe, profile=new_profile(pipe))
    try:
        tab.open(f"http://{host}:{port}/")
        tab.until("document.title === 'hostile'")
        tab.run(f"location.href = {json.dumps(console.link)}")
        tab.shows("TW-231")
        assert Browser(console.link).entered.status == 200, "the link was used up"
    finally:
        tab.close()
        console.stop()
        broker.stop()


def test_a_name_that_is_rebound_to_the_console_reads_and_does_nothing(stage: Stage) -> None:
    tab = Tab(stage.pipe, profile=stage.tab("admin").profile)
    tab.open(f"http://rebound.example:{urlsplit(stage.url).port}/")
    tab.shows("The request is for 'rebound.example")
    paths = [f"{path}/{verb}" for path, verb in ACTIONS] + list(SESSION)
    script = "Promise.all(%s.map((path) => fetch(path, {method: %s}).then((one) => one.status)))"
    assert set(tab.run(script % (json.dumps(paths), "'POST'"))) == {403}
    assert set(tab.run(script % (json.dumps([page.path for page in PAGES]), "'GET'"))) == {403}
    tab.close()
