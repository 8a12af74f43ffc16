"""What strangers write, two operators at once, ended sessions, restarts, and a thousand open pages."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import pytest

from services.process.ports import holder_of
from tests.console.chromium import Pipe, Tab
from tests.console.conftest import Stage
from tests.console.test_roles import eventually, post
from tests.console.verbs import ACTIONS, CASES, PAGES
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess

MARKUP: Final = "<img src=x onerror='window.ran=1'><script>window.ran=1</script><b class=strange>"
TEXTS: Final = {
    "markup": MARKUP,
    "quotes": """"><svg onload=window.ran=1>{{7*7}}{% x %}' onfocus='window.ran=1' autofocus='""",
    "direction": "abc\u202egnp.exe\u2066 \u05e9\u05dc\u05d5\u05dd",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f642 e\u0301",
    "control": "\x1b[2J\x07\x9b31m\rTW-000",
}
LONG: Final = 4 * 1024 * 1024 - 1024
PAGE_BYTES_MAX: Final = 256 * 1024
OF_BROKER: Final = [(path, verb) for path, verb in ACTIONS if path != "/cluster"]
OPEN_PAGES, THREADS = 1_000, 32
CONNECTIONS_MAX: Final = 1_536
"""The limit on connections of an address (`HTTP_CONNECTIONS_PER_ADDRESS_MAX`)."""
GROWTH_BYTES_MAX: Final = 128 << 20


def check_inert(tab: Tab, url: str) -> str:
    """Open a page, check that nothing that a stranger wrote has an effect, and return its text."""
    tab.open(url)
    tab.until("document.querySelector('main h1')")
    strange = "main script, main img, main svg[onload], main .strange, main [onfocus]"
    assert tab.run(f"window.ran === undefined && !document.querySelector({json.dumps(strange)})"), url
    text = tab.text()
    assert not set("\u202e\u2066\x1b\x07\x9b\r") & set(text), url
    return text


@pytest.mark.parametrize("kind", TEXTS)
def test_what_strangers_write_is_shown_and_has_no_effect(stage: Stage, kind: str) -> None:
    world, text, tab = stage.world, TEXTS[kind], stage.tab("admin")
    topic, group = world.topic(), f"shop-{kind}"
    world.api.post("groups", group, "receive", body={"topic": topic})
    printable = "".join(one for one in text if one.isprintable())  # which alone a reason may hold
    key = printable.replace(" ", "")[:60]
    note = printable if kind == "control" else text
    content = {"topic": topic, "body": text, "keys": [key], "properties": {"note": note}}
    world.api.post("messages", body=content)
    timer = world.api.post("timers", body=content | {"in": "1h", "timer_key": key})["message_id"]
    [found] = world.api.post("groups", group, "receive", body={"topic": topic})["messages"]
    refusal = {"receipt_handles": [found["receipt_handle"]], "dead_letter": True, "reason": printable}
    world.api.post("groups", group, "nack", body=refusal)
    world.api.post("topics", topic, "hold", body={"reason": printable})
    named = {
        "/topics/one": {"name": topic},
        "/topics/message": {"topic": topic, "queue": "0", "offset": "0"},
        "/topics/send": {"topic": topic, "queue": "0", "offset": "0"},
        "/topics/change": {"name": topic},
        "/messages": {"name": key},
        "/search": {"topic": topic, "text": text},
        "/timers": {"topic": topic},
        "/timers/one": {"topic": topic, "id": timer},
        "/dead-letters/group": {"group": group},
        "/dead-letters/one": {"group": group, "offset": "0"},
        "/journal": {"about": topic},
    }
    for path, query in named.items():
        shown = check_inert(tab, f"{stage.url}{path}?{urlencode(query)}")
        assert "TW-" not in shown.replace("TW-000", ""), shown
    for page in PAGES:
        query = urlencode(dict.fromkeys(("name", "topic", "group", "id", "key", "text", "about"), text))
        check_inert(tab, f"{stage.url}{page.path}?{query}")


@pytest.mark.parametrize(
    "body", [{"body": "x" * LONG}, {"body_base64": base64.b64encode(bytes(LONG)).decode()}]
)
def test_a_body_of_four_mebibytes_is_cut_and_sent_again(stage: Stage, body: dict[str, str]) -> None:
    world, tab = stage.world, stage.tab("admin")
    topic = world.topic()
    world.api.post("messages", body={"topic": topic} | body)
    place = f"topic={topic}&queue=0&offset=0"
    for page in (f"/topics/one?name={topic}", f"/topics/message?{place}", f"/topics/send?{place}"):
        tab.open(stage.url + page)
        tab.until("document.querySelector('main h1')")
        assert tab.run("document.documentElement.outerHTML.length") < PAGE_BYTES_MAX
    tab.shows("too long to be edited here")
    tab.open(f"{stage.url}/topics/message?{place}")
    tab.press("#again button")
    tab.shows(f"Sent to {topic}")
    assert world.stored(topic) == 2
    status, said = post(tab, "/topics/send/now", {"topic": topic, "body": "x" * LONG})
    assert (status, "longer than" in said) == (400, True)


@pytest.mark.parametrize(("path", "verb"), OF_BROKER, ids=[f"{path}/{verb}" for path, verb in OF_BROKER])
def test_two_operators_do_the_same(stage_of: Callable[[str], Stage], path: str, verb: str) -> None:
    stage, form = stage_of(path), f'form[action="{path}/{verb}"]'
    case = CASES[path, verb](stage.world)
    tabs = [stage.tab("admin"), Tab(stage.pipe, profile=stage.tab("admin").profile)]
    for tab in tabs:
        tab.open(stage.url + case.page)
        tab.fill(form, **case.typed)
        tab.run("document.querySelector('main').dataset.everyMs = 0")
    for tab in tabs:
        tab.press(f"{form} button")
        tab.until("document.querySelector('main .note, main .error').textContent.length > 10")
    tabs[1].close()


def test_an_act_after_the_session_has_ended_leads_to_the_sign_in(stage: Stage) -> None:
    case = CASES["/timers/one", "cancel"](stage.world)
    profile = stage.tab("operator").profile
    tab, other = Tab(stage.pipe, profile=profile), Tab(stage.pipe, profile=profile)
    tab.open(stage.url + case.page)
    tab.fill("#cancel", **case.typed)
    other.open(f"{stage.url}/timers")
    other.press(".session button")
    other.shows("Token")
    tab.press("#cancel button")
    tab.shows("Sign in first.")
    assert not case.is_done()
    stage.sign_in(tab, "operator")
    tab.open(stage.url + case.page)
    tab.fill("#cancel", **case.typed)
    tab.press("#cancel button")
    tab.shows(case.said)
    assert case.is_done()
    tab.close()
    other.close()


def test_a_token_that_is_revoked_ends_the_session(stage: Stage) -> None:
    made = stage.world.api.post("auth", "tokens", body={"user": "viewer"})
    browser = Browser(f"{stage.url}/sign-in")
    assert browser.post("/sign-in", token=made["token"]).status == 200
    assert browser.open("/topics").status == 200
    stage.world.api.delete("auth", "tokens", made["id"])
    ended = browser.open("/topics")
    assert (ended.status, "Sign in" in ended.text, list(browser.cookies)) == (
        401,
        True,
        [],
    ) or ended.status == 401
    assert browser.open("/topics").status == 401


def test_a_form_left_open_over_a_restart_is_sent(pipe: Pipe, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    console, tab = ConsoleProcess(os.environ, broker.http), Tab(pipe)
    try:
        broker.post("/api/timers", {"topic": "deadlines", "body": "7", "in": "30m", "timer_key": "k"})
        tab.open(console.link)
        tab.open(f"{console.url}/timers?key=k")
        tab.press("td a[href^='/timers/one']")
        tab.fill("#cancel", reason="paid")
        broker.kill()
        tab.press("#cancel button")
        tab.shows("TW-")
        tab.run("history.back()")
        tab.until("document.querySelector('#cancel')")
        broker.start()
        tab.fill("#cancel", reason="paid")
        tab.press("#cancel button")
        tab.shows("CANCELLED")
    finally:
        tab.close()
        console.stop()
        broker.stop()


def test_a_search_that_matches_all_stops_at_a_thousand_rows_and_one_that_matches_nothing_ends(
    stage: Stage,
) -> None:
    topic, tab = stage.world.topic(), stage.tab("admin")
    for first in range(0, 6_000, 1_000):
        batch = [{"topic": topic, "body": f"order {at}"} for at in range(first, first + 1_000)]
        stage.world.api.post("messages", body={"messages": batch})
    tab.open(f"{stage.url}/search?topic={topic}&text=order")
    tab.until(
        "!document.querySelector('#stop') && document.querySelectorAll('[data-part] tbody tr').length >= 1000"
    )
    assert tab.run("document.querySelectorAll('[data-part] tbody tr').length") < 1_100
    tab.shows("Search on")
    tab.open(f"{stage.url}/search?topic={topic}&text=cart")
    tab.shows("0 of 6,000 messages match")
    tab.shows("that is all")


class Sick(http.server.BaseHTTPRequestHandler):
    """A broker that answers every request with `answer`."""

    answer: tuple[int, bytes] = (503, b"")

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 -- the names of methods of HTTP

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sick(answer: tuple[int, bytes]) -> Iterator[str]:
    """Serve a broker that answers so."""
    kind = type("Answering", (Sick,), {"answer": answer})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def refusal(code: str, message: str) -> bytes:
    return json.dumps({"code": code, "message": message, "detail": message}).encode()


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ((503, refusal("TW-104", "The broker starts.")), 503, "The broker starts."),
        ((403, refusal("TW-182", "Not yours.")), 403, "Not yours."),
        ((409, refusal("TW-117", "The store is read-only.")), 409, "The store is read-only."),
        ((507, refusal("TW-116", "The disk is full.")), 503, "The disk is full."),
        ((200, b"<html>a proxy</html>"), 503, "TW-"),
        ((500, b"\xff\x00"), 503, "TW-"),
    ],
    ids=["starting", "refusing", "read-only", "full", "proxy", "garbage"],
)
def test_pages_of_a_sick_broker_say_so(answer: tuple[int, bytes], status: int, said: str) -> None:
    with sick(answer) as address:
        console = ConsoleProcess(os.environ, address)
        try:
            browser = Browser(console.link)
            for page in PAGES:
                needed = dict.fromkeys(
                    ("name", "topic", "id", "group", "client", "verb", "reason", "why"), "x"
                )
                needed |= {"offset": "0", "queue": "0", "kind": "timers", "to": "latest", "cron": "@daily"}
                shown = browser.open(f"{page.path}?{urlencode(needed)}")
                assert (shown.status, said in shown.text) == (status, True), (page.path, shown.text[-900:])
        finally:
            console.stop()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process open as many files as there are connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS_MAX * 2:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS_MAX * 2), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_open_pages_take_bounded_memory(stage: Stage) -> None:
    browser = signed_in(stage)
    cookie = "; ".join(f"{one.name}={one.value}" for one in browser.cookies)
    address = urlsplit(stage.url)
    host, port = str(address.hostname), int(address.port or 0)
    before = memory(port)

    def load(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/topics/send", headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
        made = (http.client.HTTPConnection(host, port, timeout=120) for _ in range(OPEN_PAGES))
        connections = [stack.enter_context(closing(one)) for one in made]
        assert set(pool.map(load, connections)) == {200}
        assert memory(port) - before < GROWTH_BYTES_MAX


@pytest.mark.usefixtures("many_files")
def test_a_connection_too_many_is_answered_with_a_sentence(stage: Stage) -> None:
    browser, address = signed_in(stage), urlsplit(stage.url)
    place = (str(address.hostname), int(address.port or 0))
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(closing(socket.create_connection(place, 60)))
        last = stack.enter_context(closing(socket.create_connection(place, 60)))
        with last.makefile("rb") as answer:
            told = answer.read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"maximum number of connections" in told
    assert eventually(lambda: browser.open("/topics").status == 200)


def signed_in(stage: Stage) -> Browser:
    """Return a browser of a viewer."""
    browser = Browser(f"{stage.url}/sign-in")
    assert browser.post("/sign-in", token=stage.tokens["viewer"]).status == 200
    return browser


def memory(port: int) -> int:
    """Return the resident memory of the process that listens on a port, in bytes."""
    pid = holder_of(port).split()[1]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
