"""Messages found by their content, in bounded parts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest

from commitlog.records.message import Message
from services.ops.messages.search import has_value, steps_of
from tests.unit.services.ops.conftest import START_MS
from tidewheel.errors import ClientMistake

BODY = (
    b'{"id": 7, "paid": true, "note": null, "total": 12.5, "to": {"city": "Rome", "tags": ["a", {"b": "c"}]}}'
)


async def found(desk: Any, topic: str = "t", **query: object) -> Any:
    """Return the answer to a search."""
    answer = await desk.http.get(f"/api/topics/{topic}/search", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def bodies(answer: Any) -> list[str]:
    return [one["body"] for one in answer["messages"]]


def test_a_message_is_found_by_text_property_and_json(at_desk: Callable[[Any], None]) -> None:
    async def scenario(desk: Any) -> None:
        sent = [
            {"body": "Zoë paid order 7", "properties": {"region": "EU"}},
            {"body": '{"order": {"id": 7}}', "properties": {"region": "US"}},
            {"body": '{"order": {"id": 8}}'},
            {"body_base64": "/wA="},
        ]
        for one in sent:
            await desk.http.post("/api/messages", json={"topic": "t"} | one)
        assert bodies(await found(desk, text="Zoë")) == ["Zoë paid order 7"]
        assert bodies(await found(desk, text="zoë")) == []
        assert bodies(await found(desk, property="region")) == [sent[0]["body"], sent[1]["body"]]
        assert bodies(await found(desk, property="region=US")) == ['{"order": {"id": 7}}']
        assert bodies(await found(desk, json="order.id=8")) == ['{"order": {"id": 8}}']
        assert bodies(await found(desk, json="$.order.id")) == [sent[1]["body"], sent[2]["body"]]
        both = await found(desk, json="order.id", property="region=US")
        assert (bodies(both), both["scanned"], both["after"]) == (['{"order": {"id": 7}}'], 4, None)
        packed = Message(topic="t", body=gzip.compress(b"packed text"), message_id="P", gzip=True)
        await desk.live.send(packed)
        assert len((await found(desk, text="packed text"))["messages"]) == 1

    at_desk(scenario)


def test_a_search_goes_on_where_it_stopped_and_ends(at_desk: Callable[[Any], None]) -> None:
    async def scenario(desk: Any) -> None:
        for number in range(25):
            await desk.http.post("/api/messages", json={"topic": "t", "body": f"body {number}"})
        seen, after, scanned = list[str](), "", 0
        while after is not None:
            part = await found(desk, text="5", scan=4, after=after)
            assert part["scanned"] <= 4
            seen, after, scanned = seen + bodies(part), part["after"], scanned + part["scanned"]
        assert (seen, scanned) == (["body 5", "body 15"], 25)
        first = await found(desk, text="body", limit=3)
        assert bodies(first) == ["body 0", "body 1", "body 2"]
        assert bodies(await found(desk, text="body", limit=2, after=first["after"])) == ["body 3", "body 4"]

    at_desk(scenario)


def test_a_span_of_time_bounds_it(at_desk: Callable[[Any], None]) -> None:
    async def scenario(desk: Any) -> None:
        for number in range(3):
            await desk.http.post("/api/messages", json={"topic": "t", "body": str(number)})
        part = await found(desk, text="1", **{"from": START_MS - 1, "until": START_MS})
        assert (part["messages"], part["scanned"], part["after"], part["scanned_ms"]) == ([], 0, None, None)
        assert bodies(await found(desk, text="1", **{"from": START_MS})) == ["1"]
        assert bodies(await found(desk, text="1", **{"from": START_MS + 1})) == []

    at_desk(scenario)


def test_dead_letters_are_found_by_their_error(at_desk: Callable[[Any], None]) -> None:
    async def scenario(desk: Any) -> None:
        await desk.http.post("/api/groups/g/receive", json={"topic": "t"})
        await desk.http.post("/api/messages", json={"topic": "t", "body": "x"})
        one = (await desk.http.post("/api/groups/g/receive", json={"topic": "t"})).json()["messages"][0]
        refusal = {"receipt_handles": [one["receipt_handle"]], "dead_letter": True, "reason": "KeyError: sku"}
        await desk.http.post("/api/groups/g/nack", json=refusal)
        assert bodies(await found(desk, "%DLQ%g", error="keyerror")) == ["x"]
        assert bodies(await found(desk, "%DLQ%g", error="TypeError")) == []
        assert bodies(await found(desk, error="keyerror")) == []

    at_desk(scenario)


@pytest.mark.parametrize(
    "query",
    [
        {}, {"json": "=x"}, {"json": "a[b]"}, {"json": "a..b"}, {"text": "x" * 1001},
        {"text": "x", "scan": 0},
        {"text": "x", "limit": 101}, {"text": "x", "from": "in 5m"}, {"text": "x", "after": "here"},
        {"text": "x", "from": "1m ago", "until": "2m ago"},
    ],
)  # fmt: skip
def test_a_search_for_nothing_or_without_bounds_is_refused(
    at_desk: Callable[[Any], None], query: dict[str, object]
) -> None:
    async def scenario(desk: Any) -> None:
        await desk.http.post("/api/topics", json={"name": "t"})
        assert (await desk.http.get("/api/topics/t/search", params=query)).status_code == 400
        assert (await desk.http.get("/api/topics/none/search?text=x")).status_code == 404

    at_desk(scenario)


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        ("id=7", True), ("id=07", False), ("paid=true", True), ("note=null", True), ("total=12.5", True),
        ("to.city=Rome", True), ("to.tags[0]=a", True), ("to.tags[1].b=c", True), ("to.tags[2]", False),
        ("to", True), ("to=Rome", False), ("to.city.x", False), ("id[0]", False), ("to.city=", False),
    ],
)  # fmt: skip
def test_paths_of_json(path: str, is_there: bool) -> None:
    assert has_value(BODY, *steps_of(path)) == is_there


def test_what_is_no_json_has_no_path() -> None:
    assert not has_value(b"id=7", *steps_of("id"))
    assert not has_value(b"[" * 10_000, *steps_of("id"))
    assert not has_value(b'{"id": ' + b" " * 2_000_000 + b"7}", *steps_of("id"))
    with pytest.raises(ClientMistake, match="write a path"):
        steps_of("")
