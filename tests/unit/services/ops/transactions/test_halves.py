"""Transactions over HTTP: begun, ended once, and asked about by long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commitlog import limits
from services.live.errors import BrokerStops

Desk = Any
AtDesk = Callable[..., None]


async def post(desk: Desk, path: str, body: object = None, status: int = 200) -> Any:
    answer = await desk.http.post(f"/api/transactions{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def begin(desk: Desk, **more: object) -> str:
    told = await post(desk, "", {"topic": "t", "body": "x"} | more, 201)
    return str(told["transaction_id"])


async def received(desk: Desk) -> list[Any]:
    answer = await desk.http.post("/api/groups/g/receive", json={"topic": "t", "count": 32})
    found: list[Any] = answer.json()["messages"]
    return found


async def questions(desk: Desk, **more: object) -> list[Any]:
    found: list[Any] = (await post(desk, "/check-backs", {"topics": ["t"]} | more))["questions"]
    return found


async def producers(desk: Desk) -> list[str]:
    answer = await desk.http.get("/api/transactions/producers")
    return [one["client_id"] for one in answer.json()["producers"]]


def test_a_half_is_received_once_it_is_committed_and_never_when_it_is_rolled_back(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        yes, no = await begin(desk, body="yes"), await begin(desk, body="no")
        assert await received(desk) == []
        told = await post(desk, f"/{yes}/commit")
        assert told == {
            "transaction_id": yes,
            "resolution": "COMMIT",
            "repeated": False,
            "verdict": None,
            "replaced_offset": None,
        }
        assert (await post(desk, f"/{no}/rollback"))["resolution"] == "ROLLBACK"
        assert [one["body"] for one in await received(desk)] == ["yes"]
        assert (await post(desk, f"/{yes}/commit"))["repeated"] is True
        assert (await post(desk, f"/{no}/commit", status=409))["code"] == "TW-161"
        assert (await post(desk, "/none/commit", status=400))["code"] == "TW-145"

    at_desk(scenario)


def test_a_begin_whose_answer_was_lost_is_the_same_transaction(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        first = await begin(desk, idempotency_key="order-7")
        assert await begin(desk, idempotency_key="order-7") == first
        assert await begin(desk, idempotency_key="order-7", body="other") != first

    at_desk(scenario)


def test_a_verb_on_a_timer_is_done_at_the_commit(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.set("timers", "1h", timer_key="a")
        half = await begin(desk, cancel={"key": "a", "topic": "timers"})
        await desk.get("/one", topic="timers", key="a")
        for _ in range(2):
            told = await post(desk, f"/{half}/commit")
            assert told["verdict"]["verdict"] == "CANCELLED"
        await desk.get("/one", 410, topic="timers", key="a")

    at_desk(scenario)


def test_a_half_that_stays_open_is_asked_about_and_its_message_shown(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        half = await begin(desk, body=None, body_json={"n": 7}, keys=["order-7"], check_after="1m")
        polling = asyncio.ensure_future(questions(desk, wait="20s", client="shop-1"))
        while await producers(desk) != ["http@shop-1"]:
            await asyncio.sleep(0.001)
        advancing = asyncio.ensure_future(desk.advance("61s"))
        [asked] = await polling
        assert (asked["transaction_id"], asked["topic"]) == (half, "t")
        assert (asked["message"]["body_json"], asked["message"]["keys"]) == ({"n": 7}, ["order-7"])
        assert await producers(desk) == []
        await post(desk, f"/{half}/commit")
        await advancing
        log = (await desk.http.get("/api/transactions/log")).json()["questions"]
        assert [(one["client_id"], one["answer"]) for one in log] == [("http@shop-1", "COMMIT")]

    at_desk(scenario)


def test_a_half_waits_for_a_producer_that_can_be_asked(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        halves = [await begin(desk, body=str(number)) for number in range(5)]
        await desk.advance("10m")
        assert await questions(desk, topics=["other"], wait=0) == []
        found = dict[str, str]()
        while len(found) < 5:
            for one in await questions(desk, count=2, wait="20s"):
                assert one["transaction_id"] not in found, "nobody is asked twice at once"
                found[one["transaction_id"]] = one["message"]["body"]
        assert set(found) == set(halves)
        assert await post(desk, f"/{halves[0]}/unknown") == {"transaction_id": halves[0], "state": "OPEN"}
        log = (await desk.http.get("/api/transactions/log")).json()["questions"]
        assert [one["answer"] for one in log if one["transaction_id"] == halves[0] and one["client_id"]] == [
            "UNKNOWN"
        ]

    at_desk(scenario)


def test_what_questions_hold_in_memory_is_bounded(at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 1_500)

    async def scenario(desk: Desk) -> None:
        halves = {await begin(desk, body=f"{number}" * 1_000) for number in range(6)}
        await desk.advance("10m")
        found = set[str]()
        while found != halves:
            asked = await questions(desk, wait="20s")
            assert 1 <= len(asked) <= 2
            found |= {one["transaction_id"] for one in asked}
            assert desk.live.check_back_polls._held_bytes == 0

    at_desk(scenario)


def test_a_poll_for_questions_at_a_broker_that_stops_is_told_so(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        body = {"topics": ["t"], "client": "shop-1"}
        polling = asyncio.ensure_future(post(desk, "/check-backs", body, 503))
        while await producers(desk) != ["http@shop-1"]:
            await asyncio.sleep(0.001)
        desk.live.receivers.close()
        assert (await polling)["code"] == BrokerStops.code

    at_desk(scenario)


def test_what_is_wrong_is_said(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for body, sentence in (
            ({"topics": []}, "topics"),
            ({"topics": ["t"], "count": 10_000}, "count is 10000"),
            ({"topics": ["t"], "wait": "soon"}, "wait is 'soon'"),
            ({"topic": "t"}, "topics is missing. topic is not known here"),
            ({"topics": ["no no"]}, "'no no' may hold only"),
        ):
            assert sentence in (await post(desk, "/check-backs", body, 400))["message"]
        told = await post(desk, "", {"topic": "t", "body": "x", "check_after": "1"}, 400)
        assert "check_after is '1'" in told["message"]

    at_desk(scenario)


def test_a_producer_that_does_not_know_learns_that_its_transaction_has_ended(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        half = await begin(desk, body="x")
        await post(desk, f"/{half}/rollback")
        assert (await post(desk, f"/{half}/unknown"))["state"] == "ROLLED_BACK"

    at_desk(scenario)


@pytest.mark.parametrize("path", ["", "/log", "/producers"])
def test_a_look_at_an_unknown_topic_is_refused(at_desk: AtDesk, path: str) -> None:
    async def look(desk: Desk, status: int, **query: str) -> Any:
        answer = await desk.http.get(f"/api/transactions{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def scenario(desk: Desk) -> None:
        await begin(desk)
        await desk.http.post("/api/topics", json={"name": "idle", "message_type": "TRANSACTION"})
        refused = await look(desk, 404, topic="tt")
        assert refused["code"] == "TW-151"
        assert "There is no 'tt'. Create it: tidewheel topic create tt" in refused["message"]
        for topic in ("t", "idle", ""):
            await look(desk, 200, topic=topic)
        if not path:
            assert (await look(desk, 404, topic="tt", key="k"))["code"] == "TW-151"
            assert (await look(desk, 200, topic="idle", key="k"))["transactions"] == []

    at_desk(scenario)


def test_halves_whose_topic_was_lost_to_damage_are_still_listed(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        half = await begin(desk)
        del desk.live.core.topics._topics["t"]
        answer = await desk.http.get("/api/transactions", params={"topic": "t"})
        assert [one["transaction_id"] for one in answer.json()["transactions"]] == [half]

    at_desk(scenario)


def test_a_poll_of_a_topic_that_nothing_makes_is_refused(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        desk.live.settings = replace(desk.live.settings, auto_create_topics=False)
        assert (await post(desk, "/check-backs", {"topics": ["t", "typo"]}, 404))["code"] == "TW-151"
        assert await questions(desk, wait=0) == []

    at_desk(scenario)
