"""A web page as the attacker: it drives a browser on the machine of a broker that listens on loopback.

What a page can have a browser send is written in the Fetch standard: any method and path, text, forms and
files as bodies, never another `Host`, `Origin` or `Sec-Fetch-Site` than its own; JSON only after the broker
has agreed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.auth.refusals import Refusals
from services.ops.app import make_app
from services.ops.gate import Demands
from services.ops.metrics.broker_metrics import Metrics
from services.ops.requests.origins import Names, host_in, names_of

OWN = "127.0.0.1:8088"
TIMER = b'{"topic": "t", "body": "x", "in": "30m"}'
JSON = {"Content-Type": "application/json"}
STATE_CHANGES = (
    ("/api/timers", TIMER),
    ("/api/topics", b'{"name": "t"}'),
    ("/api/messages", b'{"topic": "t", "body": "x"}'),
    ("/api/topics/t/messages", b"x"),
    ("/api/auth/users", b'{"name": "intruder"}'),
    (
        "/api/auth/rules",
        b'{"user": "u", "effect": "allow", "verbs": ["send"], "topics": ["*"], "groups": []}',
    ),
    ("/api/clock/advance", b'{"by": "1h"}'),
    ("/api/timers/cancel", b'{"topic": "t", "key": "k"}'),
)


@asynccontextmanager
async def broker(desk: Any, names: Names | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, Refusals]]:
    """Give the HTTP interface of a broker on 127.0.0.1:8088 without a token, and what it refuses."""
    refusals = Refusals(lambda: 5)
    demands = Demands(names=names or names_of(["127.0.0.1"], is_loopback=True))
    app = make_app(desk.live, Metrics(desk.live, []), refusals=refusals, demands=demands)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{OWN}") as http:
        yield http, refusals
    for tasks in app.state.tasks:
        await tasks.close()


def changed(desk: Any) -> tuple[int, ...]:
    """What an attack would have changed."""
    access = desk.live.access
    core = desk.live.core
    return len(core.topics.all()), len(access.users()), len(access.rules()), core.gauges().log_end_offset


@pytest.mark.parametrize(
    "told",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},  # of a browser that says no more
        {"Origin": "null"},  # a sandboxed frame, a file
        {"Origin": "http://127.0.0.1:3000", "Sec-Fetch-Site": "same-site"},  # another server of this machine
        {"Origin": "http://localhost:8088", "Sec-Fetch-Site": "same-site"},  # not the name that was asked
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:8088.evil.example"},
        {"Origin": "http://127.0.0.1:8088@evil.example"},
    ],
)
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json"]
)
def test_a_page_of_another_origin_changes_nothing(
    at_desk: Any, told: dict[str, str], content_type: str
) -> None:
    async def scenario(desk: Any) -> None:
        async with broker(desk) as (http, refusals):
            before = changed(desk)
            for path, body in STATE_CHANGES:
                answer = await http.post(path, content=body, headers=told | {"Content-Type": content_type})
                assert (answer.status_code, answer.json()["code"]) == (403, "TW-231"), path
                assert refusals.latest(1)[0].reason == "http page"
            gone = await http.delete("/api/auth/users/u", headers=told)
            assert gone.status_code == 403
            assert changed(desk) == before

    at_desk(scenario)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_that_any_page_could_send_is_refused_also_where_nothing_tells_of_the_page(
    at_desk: Any, content_type: str
) -> None:
    async def scenario(desk: Any) -> None:
        async with broker(desk) as (http, _):
            before = changed(desk)
            for path, body in STATE_CHANGES:
                answer = await http.post(path, content=body, headers={"Content-Type": content_type})
                assert (answer.status_code, answer.json()["code"]) == (415, "TW-232"), path
            assert "curl --json" in answer.json()["message"]
            assert changed(desk) == before
            streamed = await http.post("/api/timers", content=aiter_of(TIMER))  # chunked, of no length
            assert streamed.status_code == 415

    at_desk(scenario)


async def aiter_of(content: bytes) -> AsyncIterator[bytes]:
    yield content


@pytest.mark.parametrize(
    "host",
    ["evil.example:8088", "evil.example", "127.0.0.1.evil.example:8088", "192.168.1.7:8088",
     "localhost.evil:80", "[::2]:8088", "", "localhost@evil.example", "\u00e4.example"],
)  # fmt: skip
def test_a_name_that_was_rebound_to_loopback_reads_nothing(at_desk: Any, host: str) -> None:
    async def scenario(desk: Any) -> None:
        async with broker(desk) as (http, refusals):
            told = [(b"host", host.encode()), (b"sec-fetch-site", b"same-origin")]
            for path in (
                "/api/topics",
                "/api/messages?topic=t&key=k",
                "/metrics",
                "/openapi.json",
                "/api/refused",
            ):
                refused = await http.get(path, headers=told)
                assert (refused.status_code, refused.json()["code"]) == (403, "TW-230"), path
                assert "--http-hosts" in refused.json()["message"]
            assert refusals.counts == {"http host": 5}
            made = await http.post(
                "/api/auth/users", content=b'{"name": "u"}', headers=[*told, *bytes_of(JSON)]
            )
            assert made.status_code == 403
            for path in (
                "/livez",
                "/readyz",
            ):  # what machines that dial by any name ask, and that tells nothing
                assert (await http.get(path, headers=told)).status_code == 200

    at_desk(scenario)


def bytes_of(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(
    "told",
    [
        {},  # curl, Prometheus, the commands
        {"Host": "localhost:8088"},
        {"Host": "LOCALHOST.:8088"},
        {"Host": "localhost:9999"},  # through a tunnel
        {"Host": "[::1]:8088"},
        {"Sec-Fetch-Site": "none"},  # typed in
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{OWN}"},  # its own page
    ],
)
def test_who_dials_the_broker_itself_is_served(at_desk: Any, told: dict[str, str]) -> None:
    async def scenario(desk: Any) -> None:
        async with broker(desk) as (http, refusals):
            assert (await http.get("/api/topics", headers=told)).status_code == 200
            kind = {"Content-Type": "application/json; charset=utf-8"}
            assert (await http.post("/api/timers", content=TIMER, headers=told | kind)).status_code == 201
            assert not refusals.counts

    at_desk(scenario)


def test_the_owner_names_further_hosts_and_their_pages_may_ask(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        names = names_of(["127.0.0.1"], is_loopback=True, given=["ops.example", " Broker.Example. "])
        async with broker(desk, names) as (http, _):
            for host in ("ops.example", "broker.example:8088"):
                assert (await http.get("/api/topics", headers={"Host": host})).status_code == 200
            proxied = {"Origin": "https://ops.example", "Sec-Fetch-Site": "same-origin"}  # Host is rewritten
            assert (await http.get("/api/topics", headers=proxied)).status_code == 200
            assert (await http.get("/api/topics", headers={"Host": "evil.example"})).status_code == 403

    at_desk(scenario)


def test_a_broker_that_others_reach_is_dialled_by_any_address_and_by_its_names() -> None:
    names = names_of(["0.0.0.0", "broker.internal"], is_loopback=False)
    assert all(names.has(one) for one in ("10.0.0.7", "::1", "2001:db8::1", "localhost", "broker.internal"))
    assert not names.has("evil.example")
    assert names_of([], is_loopback=True, given=["*"]).has("evil.example")


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("A.b:1", "a.b"),
        ("a.b.", "a.b"),
        ("[::1]:8088", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
    ],
)
def test_a_host_is_read_without_its_port(authority: str, host: str) -> None:
    assert host_in(authority) == host
