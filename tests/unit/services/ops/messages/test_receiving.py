"""Receive, acknowledge, refuse and extend over HTTP, over a real core and a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.errors import DiskFull
from services.live.errors import BrokerStops

Desk = Any
AtDesk = Callable[..., None]
MISSING = "t 0 1763700000000 60000 0 0 broker 0 0 0 7"


async def post(desk: Desk, path: str, body: object, status: int = 200, group: str = "g") -> Any:
    """Ask for something under the path of a group; the status must be as expected."""
    answer = await desk.http.post(f"/api/groups/{group}/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def send(desk: Desk, *ids: str, **more: Any) -> None:
    """Store a message for each id in topic t, which has one queue."""
    await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
    for one in ids:
        await desk.live.send(Message(**{"topic": "t", "body": b"x", "message_id": one} | more))


async def receive(desk: Desk, **more: Any) -> list[Any]:
    """Receive from t at once."""
    found: list[Any] = (await post(desk, "receive", {"topic": "t"} | more))["messages"]
    return found


def test_a_receive_that_creates_its_topic_says_so_once(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk)
        assert await post(desk, "receive", {"topic": "t"}) == {"messages": [], "created_topic": None}
        waiting = asyncio.ensure_future(post(desk, "receive", {"topic": "tt", "wait": "20s"}))
        while "tt" not in desk.live.core.topics:
            await asyncio.sleep(0)
        assert (await post(desk, "receive", {"topic": "tt"}))["created_topic"] is None
        count = desk.live.core.topics.get("tt").queue_count
        await desk.live.send(Message(topic="tt", body=b"x", message_id="A"))
        told = await waiting
        assert ids(told["messages"]) == ["A"]
        assert told["created_topic"] == {"name": "tt", "queue_count": count}

    at_desk(scenario)


def ids(messages: list[Any]) -> list[str]:
    return [one["message_id"] for one in messages]


def test_a_message_is_received_with_all_it_says_and_is_done_once_acknowledged(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A", tag="paid", keys=("order-1",), properties={"by": "me"}, message_group="one")
        [got] = await receive(desk, lease="30s")
        assert (got["message_id"], got["body"], got["tag"], got["keys"]) == ("A", "x", "paid", ["order-1"])
        assert (got["properties"], got["message_group"]) == ({"by": "me"}, "one")
        assert (got["attempt"], got["topic"], got["store_ms"]) == (1, "t", str(desk.now_ms))
        assert got["leased_until_ms"] == str(desk.now_ms + 30_000)
        assert await receive(desk) == []
        told = await post(desk, "ack", {"receipt_handles": [got["receipt_handle"]]})
        expected = [{"receipt_handle": got["receipt_handle"], "error": None}]
        assert told == {"done": 1, "refused": 0, "results": expected}
        await desk.advance("1h")
        assert await receive(desk) == []

    at_desk(scenario)


def test_each_handle_has_its_own_result(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A", "B")
        first, second = await receive(desk)
        handles = [first["receipt_handle"], MISSING, second["receipt_handle"], "nothing", "u 1 2"]
        told = await post(desk, "ack", {"receipt_handles": handles})
        codes = [one["error"] and one["error"]["code"] for one in told["results"]]
        assert codes == [None, "TW-146", None, "TW-146", "TW-146"]
        assert (told["done"], told["refused"]) == (2, 3)
        again = await post(desk, "ack", {"receipt_handles": handles[:1]})
        assert again["refused"] == 1

    at_desk(scenario)


def test_an_acknowledgement_after_the_lease_is_refused_and_the_message_comes_again(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        [got] = await receive(desk, lease="10s")
        await desk.advance("11s")
        told = await post(desk, "ack", {"receipt_handles": [got["receipt_handle"]]})
        assert "has run out or was answered" in told["results"][0]["error"]["message"]
        [again] = await receive(desk, client="shop-1")
        assert (again["message_id"], again["attempt"]) == ("A", 2)
        await post(desk, "nack", {"receipt_handles": [again["receipt_handle"]], "dead_letter": True})
        [dead] = (await desk.http.get("/api/dead-letters/groups/g")).json()["dead_letters"]
        assert "http@127.0.0.1" in dead["first_error"]["what"]

    at_desk(scenario)


def test_a_refused_message_comes_again_after_a_span_or_as_the_policy_says(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        policy = {"name": "g", "retry_after_ms": [60_000, 120_000]}
        await desk.http.post("/api/groups", json=policy)
        for span, attempt in (("59s", 1), ("119s", 2), ("119s", 3)):
            [got] = await receive(desk)
            assert got["attempt"] == attempt
            await post(desk, "nack", {"receipt_handles": [got["receipt_handle"]]})
            await desk.advance(span)
            assert await receive(desk) == []
            await desk.advance("1s")
        [got] = await receive(desk)
        told = await post(desk, "nack", {"receipt_handles": [got["receipt_handle"]], "after": "0s"})
        assert told["done"] == 1
        await desk.advance("1ms")
        assert ids(await receive(desk)) == ["A"]

    at_desk(scenario)


def test_a_message_is_given_up_at_once(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        [got] = await receive(desk)
        body = {"receipt_handles": [got["receipt_handle"], got["receipt_handle"]], "dead_letter": True}
        told = await post(desk, "nack", body)
        assert (told["done"], told["refused"]) == (1, 1)
        dead = await desk.http.get("/api/dead-letters/groups/g")
        assert [one["message_id"] for one in dead.json()["dead_letters"]] == ["A"]

    at_desk(scenario)


def test_a_lease_is_extended_and_has_another_handle(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        [got] = await receive(desk, lease="10s")
        told = await post(desk, "extend", {"receipt_handles": [got["receipt_handle"]], "lease": "1m"})
        new = told["results"][0]["new_receipt_handle"]
        await desk.advance("50s")
        assert await receive(desk) == []
        told = await post(desk, "ack", {"receipt_handles": [got["receipt_handle"], new]})
        assert [one["error"] is None for one in told["results"]] == [False, True]

    at_desk(scenario)


def test_a_dead_letter_keeps_its_consumers_reason(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        widest = {f"p{n}": "ü" * 60 for n in range(100)}
        await send(desk, "A", properties=widest)
        [got] = await receive(desk)
        reason = "\N{SNOWMAN}" * limits.DEAD_REASON_CHARACTERS_MAX
        body = {"receipt_handles": [got["receipt_handle"]], "dead_letter": True, "reason": reason}
        assert (await post(desk, "nack", body))["done"] == 1
        [dead] = (await desk.http.get("/api/dead-letters/groups/g")).json()["dead_letters"]
        assert dead["reason"] == f"its consumer gave it up: {reason}"
        assert dead["message_id"] == "A"

    at_desk(scenario)


@pytest.mark.parametrize(
    ("body", "content_type", "shown"),
    [
        ("ä".encode(), "", {"body": "ä"}),
        (b"\xff\x00", "", {"body_base64": "/wA="}),
        (b'{"n":1.10,"big":12345678901234567890123}', "application/json", None),
        (b"null", "application/vnd.order+json; charset=utf-8", {"body_json": None}),
        (b"{no json", "application/json", {"body": "{no json"}),
        (b"NaN", "application/json", {"body": "NaN"}),
        (b"\xff", "application/json", {"body_base64": "/w=="}),
        (b"[" * 5_000 + b"]" * 5_000, "application/json", {"body": "[" * 5_000 + "]" * 5_000}),
    ],
)
def test_a_body_is_text_json_or_base64(
    at_desk: AtDesk, body: bytes, content_type: str, shown: dict[str, Any] | None
) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A", body=body, properties={"content-type": content_type} if content_type else {})
        answer = await desk.http.post("/api/groups/g/receive", json={"topic": "t"})
        [got] = answer.json()["messages"]
        if shown is None:
            assert body in answer.content, "each digit is as it was sent"
        else:
            assert {name: got[name] for name in got if name.startswith("body")} == shown

    at_desk(scenario)


def test_a_body_in_json_is_received_byte_for_byte_as_text(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A", body=b'{ "n": 1.10 }', properties={"content-type": "application/json"})
        [got] = await receive(desk, as_text=True)
        assert {name: got[name] for name in got if name.startswith("body")} == {"body": '{ "n": 1.10 }'}

    at_desk(scenario)


def test_a_receive_waits_for_what_comes_and_says_by_filter_what_it_wants(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk)
        waiting = asyncio.ensure_future(receive(desk, filter="paid", wait="20s"))
        sql = asyncio.ensure_future(
            post(desk, "receive", {"topic": "t", "sql": "n > 3", "wait": "20s"}, group="h")
        )
        while len(desk.live.receivers._long_polls._waiting["t"]) < 2:
            await asyncio.sleep(0)
        await send(desk, "A", tag="new", properties={"n": "2"})
        await send(desk, "B", tag="paid", properties={"n": "4"})
        assert ids(await waiting) == ["B"]
        assert ids((await sql)["messages"]) == ["B"]

    at_desk(scenario)


@pytest.mark.parametrize(
    ("path", "body", "code", "sentence"),
    [
        (
            "receive",
            {"topic": "t", "count": 10_000},
            "TW-130",
            "count is 10000: an answer has 1 to 32 messages",
        ),
        ("receive", {"topic": "t", "count": 0}, "TW-130", "count is 0"),
        ("receive", {"topic": "t", "lease": "30"}, "TW-130", "lease is '30': it has no unit; write 30s"),
        ("receive", {"topic": "t", "lease": "1s"}, "TW-140", "lease is '1s': give 10s to 12h"),
        (
            "receive",
            {"topic": "t", "wait": 20},
            "TW-130",
            "wait is '20': it has no unit; write 20s for seconds",
        ),
        ("receive", {"topic": "t", "lease": 30}, "TW-130", "lease is '30': it has no unit; write 30s"),
        (
            "receive",
            {"topic": "t", "lease": "43200001ms"},
            "TW-140",
            "lease is '43200001ms': give 10s to 12h",
        ),
        ("receive", {"topic": "t", "wait": -1}, "TW-130", "wait is '-1'"),
        ("receive", {"topic": "t", "filter": "a | b"}, "TW-139", "Write tags as"),
        ("receive", {"topic": "t", "sql": "n >"}, "TW-139", "column 4: it ends"),
        ("receive", {"topic": "t", "sql": "n > 1", "filter": "a"}, "TW-130", "one of them"),
        ("receive", {"topic": "no no"}, "TW-131", "no no"),
        ("receive", {"topic": ""}, "TW-130", "topic"),
        ("receive", {"topic": "TW_SYS_ACK"}, "TW-131", "own topics"),
        ("receive", {}, "TW-130", "topic is missing."),
        (
            "receive",
            {"topics": ["t"]},
            "TW-130",
            "topic is missing. topics is not known here: write topic.",
        ),
        ("receive", {"topic": "t", "wait": 1.5}, "TW-130", "wait is 1.5: it must be a text with its unit"),
        ("receive", {"topic": "t", "wait": None}, "TW-130", "wait: it must be a text with its unit"),
        ("receive", {"topic": "t", "count": "many"}, "TW-130", "count is 'many': it must be a whole number"),
        ("receive", [], "TW-130", "the body is a list: it must be an object, write {...}"),
        ("receive", None, "TW-130", "The body is empty"),
        (
            "ack",
            {"receipt_handles": "x"},
            "TW-130",
            "receipt_handles is 'x': it must be a list, [...] in JSON",
        ),
        ("ack", {"receipt_handles": []}, "TW-130", "receipt_handles: it must have at least 1 item, not 0"),
        ("ack", {"receipt_handles": ["x"] * 1_025}, "TW-130", "at most 1024 items, not 1025"),
        ("nack", {"receipt_handles": ["x"], "after": "30m", "dead_letter": True}, "TW-130", "or it does not"),
        ("nack", {"receipt_handles": ["x"], "reason": "why"}, "TW-130", "kept with a dead letter"),
        ("nack", {"receipt_handles": ["x"], "dead_letter": True, "reason": "a\x01b"}, "TW-130", "one line"),
        ("nack", {"receipt_handles": ["x"], "dead_letter": True, "reason": "x" * 201}, "TW-130", "200"),
        ("nack", {"receipt_handles": ["x"], "after": "13h"}, "TW-140", "after is '13h': give 0s to 12h"),
        ("extend", {"receipt_handles": ["x"]}, "TW-130", "lease is missing."),
        ("extend", {"receipt_handles": ["x"], "lease": "13h"}, "TW-140", "lease is '13h': give 0s to 12h"),
        ("extend", {"receipt_handles": ["x"], "lease": "soon"}, "TW-130", "lease is 'soon'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    at_desk: AtDesk, path: str, body: object, code: str, sentence: str
) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        await desk.http.post("/api/groups", json={"name": "g"})
        told = await post(desk, path, body, 400)
        assert told["code"] == code
        assert sentence in told["message"]
        assert "\n" not in told["message"]

    at_desk(scenario)


@pytest.mark.parametrize("group", ["a b", "ä", "%F0%9F%98%80", "a.b", "g" * 121])
def test_a_group_that_cannot_be_is_named(at_desk: AtDesk, group: str) -> None:
    async def scenario(desk: Desk) -> None:
        told = await post(desk, "receive", {"topic": "t"}, 400, group)
        assert told["code"] == "TW-132"

    at_desk(scenario)


def test_a_slash_in_a_path_is_told_from_an_unknown_path(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        told = await post(desk, "receive", {"topic": "t"}, 404, "a%2Fb")
        assert "No name in a path has a slash" in told["message"]
        assert "slash" not in (await post(desk, "take", {"topic": "t"}, 404))["message"]

    at_desk(scenario)


def test_an_unknown_group_acknowledges_nothing_and_a_body_that_is_no_json_is_named(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for verb in ("ack", "nack"):
            told = await post(desk, verb, {"receipt_handles": [MISSING]}, 404)
            assert told["code"] == "TW-154"
        headers = {"Content-Type": "application/json"}
        answer = await desk.http.post("/api/groups/g/receive", content=b"topic=t", headers=headers)
        assert answer.status_code == 400
        assert "Invalid JSON" in answer.json()["message"]

    at_desk(scenario)


def test_a_poll_at_a_broker_that_stops_is_told_so(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk)
        waiting = asyncio.ensure_future(post(desk, "receive", {"topic": "t", "wait": "20s"}, 503))
        while not desk.live.receivers._long_polls._waiting["t"]:
            await asyncio.sleep(0)
        desk.live.receivers.close()
        assert (await waiting)["code"] == BrokerStops.code
        assert (await post(desk, "receive", {"topic": "t"}, 503))["code"] == BrokerStops.code

    at_desk(scenario)


def test_while_new_messages_are_refused_what_is_there_is_received(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        desk.live.refuse_new_messages(DiskFull("95 % are used."))
        for path in ("/api/messages", "/api/transactions"):
            refused = await desk.http.post(path, json={"topic": "t", "body": "x"})
            assert (refused.status_code, refused.json()["code"]) == (503, "TW-172")
        [got] = await receive(desk)
        assert (await post(desk, "ack", {"receipt_handles": [got["receipt_handle"]]}))["done"] == 1

    at_desk(scenario)


def test_a_poll_goes_on_when_the_disk_has_failed_and_works_again(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk)
        waiting = asyncio.ensure_future(receive(desk, wait="20s"))
        while not desk.live.receivers._long_polls._waiting["t"]:
            await asyncio.sleep(0)
        desk.live.fail(OSError(5, "Input/output error"))
        await desk.live.wait_until_available()
        await send(desk, "A")
        assert ids(await waiting) == ["A"]

    at_desk(scenario)


def test_so_many_polls_are_open_at_most(at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_POLLS_PER_ADDRESS_MAX", 1)

    async def scenario(desk: Desk) -> None:
        await send(desk)
        waiting = asyncio.ensure_future(receive(desk, wait="20s"))
        while not desk.live.receivers._long_polls._waiting["t"]:
            await asyncio.sleep(0)
        assert (await post(desk, "receive", {"topic": "t"}, 503))["code"] == "TW-179"
        arrivals = await desk.http.get("/api/topics/t/arrivals?wait_ms=1000")
        assert (arrivals.status_code, arrivals.json()["code"]) == (503, "TW-179")
        await send(desk, "A")
        assert ids(await waiting) == ["A"]
        assert await receive(desk) == []

    at_desk(scenario)


def test_answers_that_nobody_reads_are_bounded_with_those_of_the_protocol_port(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "A")
        desk.live.receivers.unread_bytes = limits.ANSWERS_BYTES_MAX
        assert (await post(desk, "receive", {"topic": "t"}, 503))["code"] == "TW-226"
        desk.live.receivers.unread_bytes = 0
        assert ids(await receive(desk)) == ["A"]
        assert desk.live.receivers.unread_bytes == 0

    at_desk(scenario)


def test_what_is_leased_counts_as_unread_before_it_is_durable(
    at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWERS_BYTES_MAX", 250)

    async def scenario(desk: Desk) -> None:
        await send(desk, *map(str, range(5)), body=b"x" * 100)
        durable, wait = asyncio.Event(), desk.live.answers.wait_until_durable

        async def wait_later(offset: int) -> None:
            await durable.wait()
            await wait(offset)

        monkeypatch.setattr(desk.live.answers, "wait_until_durable", wait_later)
        one = {"topic": "t", "count": 1}
        leasing = [asyncio.ensure_future(post(desk, "receive", one)) for _ in range(3)]
        while desk.live.receivers.unread_bytes < 300:
            await asyncio.sleep(0.001)
        assert (await post(desk, "receive", one, 503))["code"] == "TW-226"
        durable.set()
        assert sum(len(got["messages"]) for got in await asyncio.gather(*leasing)) == 3
        assert desk.live.receivers.unread_bytes == 0

    at_desk(scenario)
