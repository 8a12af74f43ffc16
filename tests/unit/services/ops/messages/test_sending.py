"""Messages sent over HTTP: one and many, delayed, with verbs on timers, and again after a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

Desk = Any
AtDesk = Callable[..., None]


async def send(desk: Desk, body: object, status: int = 201, **headers: str) -> Any:
    answer = await desk.http.post("/api/messages", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def received(desk: Desk) -> list[Any]:
    answer = await desk.http.post("/api/groups/g/receive", json={"topic": "t", "count": 32})
    found: list[Any] = answer.json()["messages"]
    return found


def test_many_messages_are_stored_each_or_refused_for_itself(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        messages = [{"topic": "t", "body": str(number), "keys": [f"k{number}"]} for number in range(250)]
        messages[7] = {"topic": "t", "body": ""}
        messages[9] = {"topic": "t", "body": "x", "cancel": {"key": "a"}, "fire": {"key": "a"}}
        told = await send(desk, {"messages": messages}, 200)
        assert (told["sent"], told["refused"]) == (248, 2)
        assert [one["code"] for one in told["messages"] if "code" in one] == ["TW-141", "TW-130"]
        assert told["messages"][8]["verdict"] is None
        found = await desk.http.get("/api/messages?topic=t&key=k249")
        assert [one["body"] for one in found.json()["messages"]] == ["249"]

    at_desk(scenario)


def test_keys_with_blanks_come_back_as_they_were_sent_and_are_found_whole(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        keys = {"a": ["order 7", "x"], "b": ["order", "7"], "c": ["order\u00a07"], "d": [" 7  8 "]}
        for body, ones in keys.items():
            await send(desk, {"topic": "t", "body": body, "keys": ones})
        assert {one["body"]: one["keys"] for one in await received(desk)} == keys

        async def found(key: str) -> list[str]:
            answer = await desk.http.get("/api/messages", params={"topic": "t", "key": key})
            return sorted(one["body"] for one in answer.json()["messages"])

        assert [await found(key) for key in ("order 7", "x", "order", "7", "order\u00a07", " 7  8 ")] == [
            ["a"], ["a"], ["b"], ["b"], ["c"], ["d"],
        ]  # fmt: skip

    at_desk(scenario)


def test_a_delay_or_time_makes_a_timer(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, {"topic": "t", "body": "x", "in": "30m", "timer_key": "order:7"})
        timer = await desk.get("/one", topic="t", key="order:7")
        assert timer["due_ms"] == str(desk.now_ms + 1_800_000)
        await send(desk, {"topic": "t", "body": "x", "at": "2025-11-22T09:00+08:00", "timer_key": "b"})
        assert (await desk.get("/one", topic="t", key="b"))["due_ms"] == "1763773200000"
        refused = await send(
            desk, {"topic": "t", "body": "x", "in": "1h", "timer_key": "b", "unique": True}, 409
        )
        assert refused["code"] == "TW-165"

    at_desk(scenario)


def test_a_verb_on_a_timer_is_carried_and_its_verdict_answered(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for key in ("a", "b", "c"):
            await desk.set("timers", "1h", timer_key=key)

        async def verdict(**verb: object) -> Any:
            return (await send(desk, {"topic": "t", "body": "paid"} | verb))["verdict"]

        name = {"key": "a", "topic": "timers"}
        assert await verdict(cancel=name) == {"verdict": "CANCELLED", "ended_ms": None, "ended_offset": None}
        again = await verdict(cancel=name)
        assert (again["verdict"], again["ended_ms"]) == ("ALREADY", str(desk.now_ms))
        assert (await verdict(cancel={"key": "a"}))["verdict"] == "NEVER_SET", "of the message's own topic"
        moved = await verdict(move={"key": "b", "topic": "timers", "to": "2h"})
        assert moved["verdict"] == "MOVED"
        assert (await desk.get("/one", topic="timers", key="b"))["due_ms"] == str(desk.now_ms + 7_200_000)
        assert (await verdict(fire={"key": "c", "topic": "timers"}))["verdict"] == "FIRED"
        await desk.advance("3h")
        late = await verdict(cancel={"key": "b", "topic": "timers"})
        assert late["verdict"] == "TOO_LATE"
        assert late["ended_ms"] == str(desk.now_ms - 3_600_000), "in real time, three hours behind"
        assert len(await received(desk)) == 6

    at_desk(scenario)


def test_a_strict_verb_on_an_unknown_timer_is_refused_and_all_are_counted_by_topic(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.set("timers", "1h", timer_key="a")
        paid = {"topic": "t", "body": "paid", "cancel": {"key": "a"}}
        await send(desk, paid)
        strict = paid | {"properties": {"TW_TIMER_STRICT": "true"}}
        refused = await send(desk, strict, 404)
        assert (refused["code"], "'a'" in refused["message"]) == ("TW-159", True)
        assert (await send(desk, strict | {"cancel": {"key": "a", "topic": "timers"}}))["verdict"] is not None
        begun = await desk.http.post("/api/transactions", json=strict)
        assert (begun.status_code, begun.json()["code"]) == (404, "TW-159")
        counted = desk.live.core.statistics.carried_verdicts
        assert dict(counted) == {("t", "NEVER_SET"): 1, ("t", "CANCELLED"): 1}
        assert len(await received(desk)) == 2

    at_desk(scenario)


@pytest.mark.parametrize("delay", [{}, {"in": "30m"}])
def test_a_message_sent_again_with_its_key_is_stored_once(at_desk: AtDesk, delay: dict[str, str]) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.set("t", "1h", timer_key="a")
        body = {"topic": "t", "body": "x", "cancel": {"key": "a"}} | delay
        first = await send(desk, body, **{"Idempotency-Key": "pay-7"})
        await desk.advance("2s")
        again = await send(desk, body | {"idempotency_key": "pay-7"})
        assert again == first
        assert first["message_id"] == "pay-7"
        assert first["verdict"]["verdict"] == "CANCELLED"
        other = await send(desk, body | {"idempotency_key": "pay-7", "body": "y"})
        assert other["physical_offset"] != first["physical_offset"]

    at_desk(scenario)


def test_a_body_in_json_comes_back_as_json(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        values = [{"n": 1, "ä": [None, True, "x\n"]}, None, 12345678901234567890123, "Infinity", []]
        for value in values:
            await send(desk, {"topic": "t", "body_json": value, "message_group": "in order"})
            [got] = await received(desk)
            assert got["body_json"] == value
            assert "body" not in got
            assert got["properties"] == {"content-type": "application/json"}
            await desk.http.post("/api/groups/g/ack", json={"receipt_handles": [got["receipt_handle"]]})

    at_desk(scenario)


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ({"in": "30"}, "TW-138", "in is '30': it has no unit; write 30s for seconds, 30ms for milliseconds"),
        ({"in": 30}, "TW-138", "in is '30': it has no unit; write 30s for seconds, 30ms for milliseconds"),
        ({"in": "1h", "at": 1_800_000_000_000}, "TW-138", "in one way"),
        ({"at": "2026-11-22T09:00"}, "TW-138", "at is '2026-11-22T09:00'"),
        ({"body_json": {}, "body_base64": "eA=="}, "TW-130", "one of body, body_json and body_base64"),
        ({"cancel": {"key": ""}}, "TW-130", "cancel.key"),
        (
            {"cancel": {"key": "a"}, "move": {"key": "b", "to": "1h"}},
            "TW-130",
            "one of cancel, move and fire",
        ),
        ({"move": {"key": "b"}}, "TW-130", "move.to"),
        ({"move": {"key": "b", "to": "later"}}, "TW-138", "move.to is 'later'"),
        ({"cancel": {"key": "a"}, "properties": {"TW_TIMER_CANCEL": "b"}}, "TW-130", "give it once"),
        ({"idempotency_key": "x" * 129}, "TW-130", "idempotency_key"),
        ({"idempotency_key": " "}, "TW-136", "empty"),
        ({"idempotency_key": ""}, "TW-130", "idempotency_key"),
        ({"messages": []}, "TW-130", "messages"),
        ({"delay": "30m"}, "TW-130", "delay is not known here"),
        ({"body": None}, "TW-130", "Give one of body, body_json and body_base64"),
        ({"body_json": 1, "body": "x"}, "TW-130", "Give one of body, body_json and body_base64"),
        ({"timer_key": "a"}, "TW-130", "timer_key is the name of a delayed message: say when, by in or at"),
        ({"unique": True, "in": "1m"}, "TW-130", "unique is about a timer_key: name one"),
        ({"in": "1m", "at": "2026-11-22T09:00Z"}, "TW-138", "or at, as 2026-11-22T09:00Z"),
        ({"cancel": "a"}, "TW-130", "cancel is 'a': it must be an object"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    at_desk: AtDesk, body: dict[str, Any], code: str, sentence: str
) -> None:
    async def scenario(desk: Desk) -> None:
        usual = {} if "body_json" in body or "messages" in body else {"body": "x"}
        told = await send(desk, {"topic": "t"} | usual | body if "messages" not in body else body, 400)
        assert told["code"] == code
        assert sentence in told["message"]

    at_desk(scenario)


def test_numbers_that_json_does_not_have_are_refused(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for number in ("NaN", "1e999", "-1e999"):
            content = f'{{"topic": "t", "body_json": [{number}]}}'
            headers = {"Content-Type": "application/json"}
            answer = await desk.http.post("/api/messages", content=content, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (400, "TW-130"), number

    at_desk(scenario)


def test_the_key_in_the_header_is_for_one_message(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        one = {"topic": "t", "body": "x"}
        await send(desk, {"messages": [one]}, 400, **{"Idempotency-Key": "k"})
        await send(desk, one | {"idempotency_key": "other"}, 400, **{"Idempotency-Key": "k"})
        await send(desk, one, 400, **{"Idempotency-Key": "k" * 129})
        assert "is empty" in (await send(desk, one, 400, **{"Idempotency-Key": ""}))["message"]
        assert await received(desk) == []

    at_desk(scenario)


def test_what_a_request_says_twice_or_in_another_coding_is_refused(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = b'{"topic": "t", "body": "x"}'
        kind = ("Content-Type", "application/json")
        for fields, status, said in (
            ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 400, "2 fields Idempotency-Key"),
            ([("Content-Encoding", "gzip")], 415, "content-encoding is 'gzip'"),
        ):
            for path in ("/api/messages", "/api/topics/t/messages"):
                answer = await desk.http.post(path, content=body, headers=[kind, *fields])
                assert (answer.status_code, said in answer.json()["message"]) == (status, True), answer.text
        identity = [kind, ("Content-Encoding", "identity")]
        assert (await desk.http.post("/api/messages", content=body, headers=identity)).status_code == 201
        assert len(await received(desk)) == 1

    at_desk(scenario)


@pytest.mark.parametrize("url", ["/api/timers/one?topic=t&key=%ff", "/api/topics/%ff"])
def test_a_name_in_a_url_that_is_no_utf_8_is_not_read_as_another(at_desk: AtDesk, url: str) -> None:
    async def scenario(desk: Desk) -> None:
        target = url.encode("latin-1")
        request = desk.http.build_request("GET", "/livez")
        request.url = request.url.copy_with(raw_path=target)
        answer = await desk.http.send(request)
        assert (answer.status_code, answer.json()["code"]) == (400, "TW-130"), answer.text
        assert "UTF-8" in answer.json()["message"]

    at_desk(scenario)


def test_a_timer_that_replaced_another_says_so_to_its_sender(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = {"topic": "t", "body": "x", "in": "30m", "timer_key": "order:7"}
        first = await send(desk, body)
        assert first["replaced_offset"] is None
        second = await send(desk, body | {"body": "y"}, **{"Idempotency-Key": "again"})
        assert second["replaced_offset"] == first["physical_offset"]
        again = await send(desk, body | {"body": "y"}, **{"Idempotency-Key": "again"})
        assert again == second
        third = (await desk.set("t", "2h", timer_key="order:7"))["replaced_offset"]
        assert third == second["physical_offset"]
        other = await send(desk, body | {"timer_key": "order:8"})
        plain = await send(desk, {"topic": "t", "body": "x"})
        assert (other["replaced_offset"], plain["replaced_offset"]) == (None, None)

    at_desk(scenario)


def test_a_timer_that_was_moved_has_replaced_none_when_it_is_sent_again(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = {"topic": "t", "body": "x", "in": "30m", "timer_key": "k", "idempotency_key": "one"}
        await send(desk, body)
        await desk.post("/move", {"topic": "t", "key": "k", "to": "1h"})
        assert (await send(desk, body))["replaced_offset"] is None

    at_desk(scenario)


def test_a_timer_that_cancels_its_predecessor_has_replaced_none(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = {"topic": "t", "body": "x", "in": "30m", "timer_key": "k"}
        await send(desk, body)
        told = await send(desk, body | {"cancel": {"key": "k"}})
        assert (told["verdict"]["verdict"], told["replaced_offset"]) == ("CANCELLED", None)

    at_desk(scenario)


def test_a_commit_that_replaced_a_timer_says_so(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = {"topic": "t", "body": "x", "in": "30m", "timer_key": "k"}
        first = await send(desk, body)
        begun = (await desk.http.post("/api/transactions", json=body | {"body": "y"})).json()
        assert begun["replaced_offset"] is None, "nothing is replaced yet"
        for _ in range(2):
            ended = await desk.http.post(f"/api/transactions/{begun['transaction_id']}/commit")
            assert ended.json()["replaced_offset"] == first["physical_offset"]
        rolled = (await desk.http.post("/api/transactions", json=body | {"body": "z"})).json()
        ended = await desk.http.post(f"/api/transactions/{rolled['transaction_id']}/rollback")
        assert ended.json()["replaced_offset"] is None

    at_desk(scenario)


def test_the_send_that_created_its_topic_says_so_and_no_other(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        first = await send(desk, {"topic": "ordres", "body": "x"})
        assert first["created_topic"] == {"name": "ordres", "queue_count": 4}
        assert (await send(desk, {"topic": "ordres", "body": "x"}))["created_topic"] is None
        delayed = await desk.set("deadlines", "30m")
        assert delayed["created_topic"] == {"name": "deadlines", "queue_count": 4}
        begun = (await desk.http.post("/api/transactions", json={"topic": "halves", "body": "x"})).json()
        assert begun["created_topic"]["name"] == "halves"
        raw = await desk.http.post(
            "/api/topics/files/messages", content=b"x", headers={"content-type": "image/png"}
        )
        assert raw.json()["created_topic"]["name"] == "files"
        await desk.http.post("/api/topics", json={"name": "made"})
        assert (await send(desk, {"topic": "made", "body": "x"}))["created_topic"] is None

    at_desk(scenario)


def test_the_first_message_of_a_batch_for_a_new_topic_says_that_it_was_created(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, {"topic": "known", "body": "x"})
        topics = ["known", "a", "known", "b", *["a"] * 200, "c"]
        messages = [{"topic": topic, "body": "x"} for topic in topics]
        told = (await send(desk, {"messages": messages}, 200))["messages"]
        created = {at: one["created_topic"]["name"] for at, one in enumerate(told) if one["created_topic"]}
        assert created == {1: "a", 3: "b", len(topics) - 1: "c"}
        timers = [{"topic": topic, "body": "x", "in": "1h"} for topic in ("known", "d", "d")]
        told = (await desk.post("", {"timers": timers}))["timers"]
        assert [one["created_topic"] and one["created_topic"]["name"] for one in told] == [None, "d", None]

    at_desk(scenario)


CREATED = "The call created the topic {}, with 4 queues: delete it if its name is misspelt."


def test_a_refusal_names_the_topic_that_the_refused_message_created(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        lite = {"topic": "pricees", "body": "x", "lite_topic": "g"}
        refused = await send(desk, lite, 400)
        assert (refused["code"], refused["message"].endswith(" " + CREATED.format("pricees"))) == (
            "TW-144",
            True,
        ), refused
        assert refused["detail"].endswith(CREATED.format("pricees"))
        assert "created" not in (await send(desk, lite, 400))["message"]
        assert (await send(desk, {"topic": "pricees", "body": "x"}))["created_topic"] is None
        begun = await desk.http.post("/api/transactions", json=lite | {"topic": "halves"})
        assert (begun.status_code, "created" in begun.json()["message"]) == (400, False), begun.text
        topics = {one["name"] for one in (await desk.http.get("/api/topics")).json()["topics"]}
        assert "halves" not in topics

    at_desk(scenario)


def test_of_a_batch_a_refusal_names_a_topic_to_which_no_message_was_stored(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        lite = {"body": "x", "lite_topic": "g"}
        given = [lite | {"topic": "a"}, lite | {"topic": "b"}, lite | {"topic": "b"}]
        given += [{"topic": "c", "body": "x", "tag": "a|b"}, {"topic": "a", "body": "x"}]
        told = (await send(desk, {"messages": given}, 200))["messages"]
        assert ["created the topic" in one.get("message", "") for one in told] == [
            *(False, True, False),
            *(False, False),
        ]
        assert told[1]["message"].endswith(CREATED.format("b"))
        assert told[-1]["created_topic"] == {"name": "a", "queue_count": 4}

    at_desk(scenario)


def test_of_two_sends_at_once_one_creates_the_topic(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        sends = [send(desk, {"topic": "new", "body": str(number)}) for number in range(8)]
        told = await asyncio.gather(*sends)
        assert sum(one["created_topic"] is not None for one in told) == 1

    at_desk(scenario)
