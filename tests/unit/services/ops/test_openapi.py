"""`/openapi.json`: everything that is served is in it, and what it says is what is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import iscoroutinefunction, signature
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.routing import Route

from commitlog import limits
from consumequeue.filters.filter import EVERYTHING
from services.auth.vault import KEY_BYTES
from services.ops.openapi import document
from services.ops.requests.statuses import ErrorAnswer
from services.ops.routes import OPERATIONS

GROUPS: list[tuple[str, str, object]] = [
    ("get", "/api/groups", None),
    ("post", "/api/groups", {"name": "late", "topic": "t", "start": "latest"}),
    ("post", "/api/groups", {"name": "late", "topic": "t"}),
    ("get", "/api/groups/g", None),
    ("get", "/api/groups/none", None),
    ("put", "/api/groups/g", {"attempts_max": 5}),
    ("put", "/api/groups/g", {}),
    ("post", "/api/groups/g/pause", None),
    ("post", "/api/groups/g/resume", None),
    ("post", "/api/groups/g/reset", {"to": "latest", "dry_run": True}),
    ("post", "/api/groups/g/reset", {"to": "latest", "seen": {"t": {"0": "9"}}}),
    ("get", "/api/groups/g/clients", None),
    ("delete", "/api/groups/late", None),
    ("get", "/api/dead-letters", None),
    ("get", "/api/dead-letters/groups/g", None),
    ("get", "/api/dead-letters/groups/g/0", None),
    ("post", "/api/dead-letters/groups/g/0/redrive", {}),
    ("delete", "/api/dead-letters/groups/g/1", None),
    ("delete", "/api/dead-letters/groups/g/1", None),
    ("get", "/api/dead-letters/tasks", None),
    ("post", "/api/dead-letters/tasks", {"verb": "purge", "group": "g", "dry_run": True}),
    ("post", "/api/dead-letters/tasks", {"verb": "purge", "group": "g"}),
    ("get", "/api/dead-letters/tasks/none", None),
    ("delete", "/api/dead-letters/tasks/none", None),
    ("get", "/api/dead-letters/tasks/none/items", None),
    ("get", "/api/moves/tasks", None),
    ("post", "/api/moves/tasks", {"source": "r", "target": "r"}),
    ("post", "/api/moves/tasks", {"source": "r", "target": "no-topic"}),
    ("get", "/api/moves/tasks/none", None),
    ("delete", "/api/moves/tasks/none", None),
    ("get", "/api/moves/tasks/none/items", None),
]
MISSING = {"receipt_handles": ["t 0 1763700000000 60000 0 0 broker 0 0 0 7"]}
RECEIVING: list[tuple[str, str, object]] = [
    ("post", "/api/messages", {"topic": "r", "body": "x", "cancel": {"key": "none"}}),
    ("post", "/api/messages", {"messages": [{"topic": "r", "body": "x"}, {"topic": "r", "body": ""}]}),
    ("post", "/api/groups/g/receive", {"topic": "r", "wait": "1s"}),
    ("post", "/api/groups/g/receive", {"topic": "r"}),
    ("post", "/api/groups/g/receive", {"topic": "r", "count": 10_000}),
    ("post", "/api/groups/g/ack", MISSING),
    ("post", "/api/groups/g/nack", MISSING),
    ("post", "/api/groups/g/extend", MISSING | {"lease": "1m"}),
    ("post", "/api/groups/none/ack", MISSING),
]
RAW: list[tuple[str, str, object]] = [
    ("post", "/api/topics/r/messages?in=1h", {"any": "json"}),
    ("post", "/api/topics/r/messages?in=30", {"any": "json"}),
]
HALVES: list[tuple[str, str, object]] = [
    ("post", "/api/transactions", {"topic": "r", "body": "x"}),
    ("post", "/api/transactions", {"topic": "r", "body": ""}),
    ("post", "/api/transactions/check-backs", {"topics": ["r"], "wait": 0}),
]
RULE = {"user": "orders", "topics": ["orders*"], "verbs": ["send"]}
ACCESS: list[tuple[str, str, object]] = [
    ("post", "/api/auth/users", {"name": "orders"}),
    ("post", "/api/auth/users", {"name": "orders"}),
    ("get", "/api/auth/users", None),
    ("post", "/api/auth/rules", RULE),
    ("get", "/api/auth/rules", None),
    ("post", "/api/auth/rules/remove", RULE),
    ("post", "/api/auth/rules/remove", RULE),
    ("post", "/api/auth/tokens", {"user": "orders", "expires": "30d"}),
    ("post", "/api/auth/tokens", {"user": "nobody"}),
    ("get", "/api/auth/tokens", None),
    ("delete", "/api/auth/tokens/0123456789ab", None),
    ("delete", "/api/auth/users/orders", None),
    ("delete", "/api/auth/users/orders", None),
    ("get", "/api/refused", None),
    ("get", "/api/whoami", None),
]
METHODS = {"get", "post", "put", "delete", "patch"}
TOPICS = [
    ("post", "/api/topics", {"name": "fleeting", "queue_count": 1}),
    ("get", "/api/topics/fleeting/use", None),
    ("get", "/api/topics/none/use", None),
    ("put", "/api/topics/fleeting", {"queue_count": 2}),
    ("put", "/api/topics/fleeting", {"queue_count": 1}),
    ("put", "/api/topics/fleeting", {"retention": "7d", "reason": "law"}),
    ("get", "/api/topics/fleeting/use?retention=1h", None),
    ("put", "/api/topics/fleeting", {}),
    ("post", "/api/messages", {"topic": "fleeting", "body": "x"}),
    ("post", "/api/topics/fleeting/release", {}),
    ("post", "/api/topics/fleeting/hold", {"reason": "why"}),
    ("post", "/api/topics/fleeting/hold", {}),
    ("post", "/api/topics/fleeting/release", {"per_second": -1}),
    ("post", "/api/topics/fleeting/release", {"per_second": 2}),
    ("post", "/api/topics/fleeting/purge", {}),
    ("put", "/api/topics/fleeting", {"retention": "8d", "seen": {"retention": "none"}}),
    ("post", "/api/topics/fleeting/release", {"seen": {"since_ms": "1", "per_second": None}}),
    ("post", "/api/topics/fleeting/purge", {"discard": True, "seen": {"unfinished": 0}}),
    ("delete", "/api/topics/fleeting?discard=true&seen_unfinished=0", None),
    ("delete", "/api/topics/fleeting", None),
    ("get", "/api/journal", None),
    ("get", "/api/journal?before=1&about=fleeting", None),
]
CLIENTS: tuple[tuple[str, str, object], ...] = (
    ("get", "/api/clients", None),
    ("get", "/api/clients/show?client=nobody", None),
    ("post", "/api/clients/stack", {"client": "nobody"}),
    ("post", "/api/clients/reconnect", {"client": "nobody"}),
    ("post", "/api/clients/verify", {"client": "nobody", "topic": "t", "queue_id": 0, "queue_offset": 0}),
)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(value: Any) -> Iterator[str]:
    """Yield every $ref below a value."""
    if isinstance(value, dict):
        yield from [value["$ref"]] if "$ref" in value else []
        for below in value.values():
            yield from references(below)
    if isinstance(value, list):
        for below in value:
            yield from references(below)


@pytest.fixture(autouse=True)
def without_limits_of_other_tests() -> None:
    """Forget a description that was made while another test had changed a limit, as one below does."""
    document.cache_clear()


def test_every_route_of_the_application_is_in_it_and_nothing_else(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        served = {
            (route.path, method.lower())
            for route in desk.app.routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"
        }
        assert len(desk.app.routes) == len(served), "something is served that is no route"
        assert served == {(path, method) for path, method, _ in operations()}
        answer = await desk.http.get("/openapi.json")
        assert answer.json() == document()

    at_desk(scenario)


def test_it_has_the_structure_of_openapi_3_1() -> None:
    described = document()
    assert described["openapi"] == "3.1.0"
    assert {"title", "version"} <= described["info"].keys()
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations():
        assert method in METHODS
        assert operation["summary"].endswith(".")
        in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        for parameter in operation["parameters"]:
            assert parameter["in"] in ("path", "query")
            assert parameter["required"] or parameter["in"] == "query"
            assert parameter["schema"]
        assert operation["responses"]
        for status, answer in operation["responses"].items():
            assert re.fullmatch(r"[2-5]\d\d", status)
            assert answer["description"]
            assert all("schema" in content for content in answer["content"].values())
        assert method in ("post", "put") or "requestBody" not in operation


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    described = document()
    named = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(references(described)) == named


def test_every_handler_has_a_row() -> None:
    for noun, rows in OPERATIONS.items():
        named = {row.handler.__name__ for row in rows}
        methods = {
            name: one for name, one in vars(noun).items() if iscoroutinefunction(one) and name[0] != "_"
        }
        assert named == {name for name, one in methods.items() if "request" in signature(one).parameters}


def test_a_body_that_is_too_large_is_refused_wherever_one_is_read(
    at_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "HTTP_MESSAGES_BYTES_MAX", 100)
    with_body = [(path, method) for path, method, operation in operations() if "requestBody" in operation]

    async def scenario(desk: Any) -> None:
        desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
        for path, method in with_body:
            large = {"content": b" " * 101, "headers": {"Content-Type": "application/json"}}
            answer = await desk.http.request(method, re.sub(r"{\w+}", "1", path), **large)
            assert (answer.status_code, answer.json()["code"]) == (413, "TW-235"), path

    assert len(with_body) > 20
    at_desk(scenario)


def test_the_document_tells_how_large_each_body_may_be() -> None:
    told = {path: one["requestBody"]["description"] for path, _, one in operations() if "requestBody" in one}
    assert told["/api/timers"] == "At most 6291456 bytes and 100000 values."
    assert told["/api/timers/move"] == "At most 524288 bytes and 10000 values."


def test_an_answer_in_the_table_is_what_is_answered(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        receipt = await desk.set("t", "1h", timer_key="k", keys=["order"])
        await desk.http.post("/api/messages", json={"topic": "t", "body": "x"})
        name = {"topic": "t", "key": "k"}
        batch = {"timers": [{"topic": "t", "body": "x", "in": "1h"}, {"topic": "t", "body": "", "in": "1h"}]}
        count = {"verb": "cancel", "filter": {"topic": "t"}, "dry_run": True}
        task = await desk.post("/tasks", {"verb": "move", "by": "1h", "filter": {"tag": "none"}}, 202)
        fires = {"verb": "fire", "filter": {"topic": "u"}}
        await desk.set("u", "1h")
        shown = await desk.ended((await desk.post("/tasks", fires, 202))["id"])
        half = await desk.send_half("t", "order-9")
        rolled_back, committed = [await desk.send_half("t", key) for key in ("order-1", "order-2")]
        desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
        for delivery in await desk.live.receivers.receive("g", "t", EVERYTHING, 3, 60_000, "c", False, 0):
            await desk.live.call(
                desk.live.core.receiving.forward_to_dead_letter, "g", "t", delivery.receipt_handle
            )
        recurring = {"cron": "0 9 * * *", "time_zone": "Europe/London"}
        asked: list[tuple[str, str, object]] = [
            ("get", "/api/topics", None),
            ("post", "/api/topics", {"name": "new"}),
            ("post", "/api/topics", {"name": "no no"}),
            ("get", "/api/topics/t?since_ms=0", None),
            ("get", "/api/topics/t/messages", None),
            ("get", "/api/topics?counts=true", None),
            ("get", "/api/topics/t?oldest=true", None),
            ("get", "/api/topics/t/newest", None),
            ("get", "/api/topics/t/search?text=x", None),
            ("get", "/api/topics/t/search", None),
            ("get", "/api/topics/t/arrivals?after=0:0,1:0,2:0,3:0", None),
            ("get", f"/api/messages?topic=t&key={receipt['message_id']}", None),
            ("post", "/api/messages", {"topic": "t", "body": "x"}),
            ("get", "/api/clock", None),
            ("post", "/api/clock/advance", {"by": "1s"}),
            ("get", "/api/timers", None),
            ("get", "/api/timers?limit=0", None),
            ("post", "/api/timers", {"topic": "t", "body": "x", "in": "1h"}),
            ("post", "/api/timers", batch),
            ("get", "/api/timers/count", None),
            ("get", "/api/timers/histogram", None),
            ("get", "/api/timers/summary", None),
            ("get", "/api/timers/damaged", None),
            ("get", "/api/timers/one?topic=t&key=k", None),
            ("post", "/api/timers/move", name | {"to": "2h"}),
            ("post", "/api/timers/fire", name),
            ("post", "/api/timers/cancel", name),
            ("get", "/api/timers/one?topic=t&key=k", None),
            ("get", "/api/timers/one?topic=t&key=none", None),
            ("get", "/api/timers/tasks", None),
            ("post", "/api/timers/tasks", count),
            ("get", f"/api/timers/tasks/{task['id']}", None),
            ("get", f"/api/timers/tasks/{task['id']}/items", None),
            ("get", f"/api/timers/tasks/{shown['id']}/items", None),
            ("delete", f"/api/timers/tasks/{task['id']}", None),
            ("get", "/api/timers/tasks/none", None),
            ("put", "/api/schedules/daily", recurring | {"topic": "t", "body": "x"}),
            ("put", "/api/schedules/daily", recurring | {"topic": "t", "body": ""}),
            (
                "put",
                "/api/schedules/daily",
                recurring | {"topic": "t", "body": "", "seen": {}},
            ),
            ("get", "/api/schedules", None),
            ("get", "/api/schedules/daily", None),
            ("get", "/api/schedules/none", None),
            ("post", "/api/schedules/preview", recurring),
            ("post", "/api/schedules/daily/pause", None),
            ("post", "/api/schedules/daily/resume", None),
            ("delete", "/api/schedules/daily", None),
            ("get", "/api/transactions?topic=t&older-than=0ms", None),
            ("get", "/api/transactions?topic=t&key=order-9", None),
            ("get", "/api/transactions?key=order-9", None),
            ("get", "/api/transactions/summary", None),
            ("post", f"/api/transactions/{half}/check", None),
            ("get", "/api/transactions/log", None),
            ("get", "/api/transactions/producers", None),
            ("get", f"/api/transactions/{half}", None),
            ("get", "/api/transactions/none", None),
            ("post", f"/api/transactions/{half}/unknown", None),
            ("post", f"/api/transactions/{rolled_back}/rollback", None),
            ("post", f"/api/transactions/{rolled_back}/commit", None),
            ("post", f"/api/transactions/{committed}/commit", None),
            ("post", f"/api/transactions/{half}/resolve", {"resolution": "COMMIT", "reason": ""}),
            ("post", f"/api/transactions/{half}/resolve", {"resolution": "COMMIT", "reason": "seen"}),
            ("post", f"/api/transactions/{half}/resolve", {"resolution": "ROLLBACK", "reason": "no"}),
            ("post", f"/api/transactions/{half}/check", None),
            ("put", "/api/topics/t/check-back", {"count_max": 3}),
            *TOPICS,
            ("put", "/api/topics/none/check-back", {}),
            ("get", "/api/explain?name=order-9&topic=t", None),
            ("get", "/api/explain?name=k", None),
            ("get", "/api/explain?name=none", None),
            *RECEIVING,
            *HALVES,
            *RAW,
            *GROUPS,
            *ACCESS,
            *CLIENTS,
        ]
        seen = set()
        for method, url, body in asked:
            answer = await desk.http.request(method, url, json=body)
            path, kind = shape_of(method, url.partition("?")[0], answer.status_code)
            seen.add((method, path))
            shape = TypeAdapter(kind)
            assert shape.dump_python(shape.validate_python(answer.json(), strict=True)) == answer.json()
        api = {(method, path) for path, method, _ in operations() if path.startswith("/api/")}
        assert seen == api, "an operation is not tried here"

    at_desk(scenario)


def shape_of(method: str, path: str, status: int) -> tuple[str, Any]:
    """Return the path in the table, and the type that it promises for an answer."""
    table = [one for part in OPERATIONS.values() for one in part if one.method.lower() == method]
    fitting = [one for one in table if re.fullmatch(re.sub(r"{\w+}", "[^/]+", one.path), path)]
    found = min(fitting, key=lambda one: one.path.count("{"))
    assert status in found.answers or status in found.refusals, (method, path, status)
    return found.path, found.answers.get(status, ErrorAnswer)
