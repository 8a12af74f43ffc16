"""Bodies as bytes, and CloudEvents: structured, in a batch, binary; and what is none of them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

Desk = Any
AtDesk = Callable[..., None]
STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
EVENT: dict[str, Any] = {"specversion": "1.0", "id": "E-1", "source": "/shop", "type": "com.example.paid"}
ATTRIBUTES = {
    "CE_specversion": "1.0",
    "CE_id": "E-1",
    "CE_source": "/shop",
    "CE_type": "com.example.paid",
}


async def post(
    desk: Desk, content: bytes, content_type: str, status: int = 201, query: str = "", **headers: str
) -> Any:
    given = {"Content-Type": content_type, **headers} if content_type else headers
    answer = await desk.http.post(f"/api/topics/t/messages{query}", content=content, headers=given)
    assert answer.status_code == status, answer.text
    return answer.json()


async def received(desk: Desk) -> list[Any]:
    answer = await desk.http.post("/api/groups/g/receive", json={"topic": "t", "count": 32})
    found: list[Any] = answer.json()["messages"]
    return found


def in_json(event: object) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.parametrize(
    ("body", "content_type", "shown"),
    [
        (b"\xff\x00,:[{" * 1_000, "application/octet-stream", None),
        (b"<a/>", "application/xml", {"body": "<a/>"}),
        (b'{"n": 1}', "application/json; charset=utf-8", {"body_json": {"n": 1}}),
    ],
)
def test_a_body_is_taken_as_the_bytes_that_it_is(
    at_desk: AtDesk, body: bytes, content_type: str, shown: dict[str, Any] | None
) -> None:
    async def scenario(desk: Desk) -> None:
        query = "?tag=new&key=order%3A7&message_group=one"
        told = await post(desk, body, content_type, query=query, **{"Idempotency-Key": "M-1"})
        assert told["message_id"] == "M-1"
        [got] = await received(desk)
        expected = shown or {"body_base64": b64encode(body).decode()}
        assert {name: got[name] for name in got if name.startswith("body")} == expected
        assert (got["tag"], got["keys"], got["message_group"]) == ("new", ["order:7"], "one")
        assert got["properties"] == {"content-type": content_type}

    at_desk(scenario)


def test_a_body_in_bytes_may_be_a_timer(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await post(desk, b"\xff", "application/octet-stream", query="?in=30m&timer_key=a%2Fb%20%F0%9F%98%80")
        timer = await desk.get("/one", topic="t", key="a/b \U0001f600")
        assert timer["due_ms"] == str(desk.now_ms + 1_800_000)

    at_desk(scenario)


@pytest.mark.parametrize(
    ("data", "body", "content_type"),
    [
        ({"data": {"n": 1}}, {"body_json": {"n": 1}}, "application/json"),
        ({"data": "text"}, {"body_json": "text"}, "application/json"),
        ({"data": None}, {"body_json": None}, "application/json"),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, {"body": "<a/>"}, "text/xml"),
        ({"data_base64": "/wA=", "datacontenttype": "image/png"}, {"body_base64": "/wA="}, "image/png"),
        ({}, {"body": "\x00"}, None),
    ],
)
def test_a_structured_event_is_its_attributes_and_its_data(
    at_desk: AtDesk, data: dict[str, Any], body: dict[str, Any], content_type: str | None
) -> None:
    async def scenario(desk: Desk) -> None:
        extensions = {"priority": 7, "urgent": True, "subject": "order 7 ä", "nothing": None}
        await post(desk, in_json(EVENT | extensions | data), STRUCTURED)
        [got] = await received(desk)
        assert {name: got[name] for name in got if name.startswith("body")} == body
        typed = {} if content_type is None else {"CE_datacontenttype": content_type}
        more = {"CE_priority": "7", "CE_urgent": "true", "CE_subject": "order 7 ä"}
        assert got["properties"] == ATTRIBUTES | typed | more
        assert got["keys"] == ["E-1"]

    at_desk(scenario)


def test_a_binary_event_has_its_attributes_in_the_header(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        headers = {
            "ce-specversion": "1.0",
            "ce-id": "E-1",
            "ce-source": "/shop",
            "ce-type": "com.example.paid",
        }
        subject = {"CE-Subject": "order%207%20%C3%A4"}
        await post(desk, b"\xff\x00", "image/png", **headers, **subject)
        [got] = await received(desk)
        assert got["body_base64"] == "/wA="
        typed = {"CE_datacontenttype": "image/png", "CE_subject": "order 7 ä"}
        assert got["properties"] == ATTRIBUTES | typed
        await post(desk, b"", "", **headers)

    at_desk(scenario)


def test_an_event_sent_again_is_stored_once(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        content = in_json(EVENT | {"data": 1})
        first = await post(desk, content, STRUCTURED)
        assert first["created_topic"] is not None
        assert await post(desk, content, STRUCTURED) == first | {"created_topic": None}
        other = await post(desk, in_json(EVENT | {"data": 1, "source": "/other"}), STRUCTURED)
        assert other["message_id"] != first["message_id"]

    at_desk(scenario)


def test_each_event_of_a_batch_is_stored_or_refused_for_itself(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        events = [EVENT | {"id": str(number)} for number in range(120)]
        del events[7]["type"]
        told = await post(desk, in_json(events), BATCH, 200, query="?in=1h")
        assert (told["sent"], told["refused"]) == (119, 1)
        assert "Event 7 has no type" in told["messages"][7]["message"]
        assert (await desk.get("/count", topic="t"))["count"] == 119

    at_desk(scenario)


@pytest.mark.parametrize(
    ("content", "content_type", "sentence"),
    [
        (b"{", STRUCTURED, "Invalid JSON"),
        (b"[]", STRUCTURED, "The event is no CloudEvent: it must be an object"),
        (in_json(EVENT | {"source": ""}), STRUCTURED, "The event has no source"),
        (in_json(EVENT | {"specversion": "0.3"}), STRUCTURED, "of version '0.3'; 1.0 is read"),
        (in_json(EVENT | {"Sub-ject": "x"}), STRUCTURED, "an attribute 'Sub-ject'"),
        (in_json(EVENT | {"at": {"n": 1}}), STRUCTURED, "an attribute at that is neither"),
        (in_json(EVENT | {"data": 1, "data_base64": "eA=="}), STRUCTURED, "data and data_base64"),
        (in_json(EVENT | {"data_base64": "x"}), STRUCTURED, "data_base64:"),
        (in_json(EVENT | {"data_base64": 7}), STRUCTURED, "data_base64:"),
        (in_json(EVENT), BATCH, "no list of 1 to 1000 CloudEvents"),
        (b"[]", BATCH, "no list of 1 to 1000 CloudEvents"),
        (b"", "application/octet-stream", "The message has no body"),
    ],
)
def test_what_is_no_event_is_named(at_desk: AtDesk, content: bytes, content_type: str, sentence: str) -> None:
    async def scenario(desk: Desk) -> None:
        assert sentence in (await post(desk, content, content_type, 400))["message"]
        assert await received(desk) == []

    at_desk(scenario)


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded; charset=utf-8"]
)
def test_what_any_page_can_send_is_refused(at_desk: AtDesk, content_type: str) -> None:
    async def scenario(desk: Desk) -> None:
        refused = await post(desk, b"x", content_type, 415)
        assert refused["code"] == "TW-232"
        assert "application/octet-stream" in refused["message"]

    at_desk(scenario)


@pytest.mark.parametrize(
    ("topic", "status", "sentence"),
    [
        ("a%20b", 400, "'a b' may hold only"),
        ("%F0%9F%98%80", 400, "may hold only"),
        ("a%2Fb", 404, "No name in a path has a slash"),
        ("TW_SYS_ACK", 400, "own topics"),
    ],
)
def test_a_topic_that_cannot_be_is_named(at_desk: AtDesk, topic: str, status: int, sentence: str) -> None:
    async def scenario(desk: Desk) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        answer = await desk.http.post(f"/api/topics/{topic}/messages", content=b"x", headers=headers)
        assert (answer.status_code, sentence in answer.json()["message"]) == (status, True), answer.text

    at_desk(scenario)


def test_an_unknown_word_in_the_query_is_named(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for query, sentence in (
            ("?dely=30m", "dely is not known here"),
            ("?in=30", "in is '30'"),
            ("?at=09:00", "at is"),
        ):
            told = await post(desk, b"x", "image/png", 400, query=query)
            assert sentence in told["message"]

    at_desk(scenario)
