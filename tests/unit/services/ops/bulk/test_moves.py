"""`/api/moves/tasks` over a real core: messages moved by filter, limit and rate, stopped, listed, refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.services.ops.conftest import Desk

AtDesk = Callable[[Callable[[Desk], Awaitable[None]]], None]


async def call(desk: Desk, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """Ask for something under /api/moves/tasks; the status must be as expected."""
    answer = await desk.http.request(method, f"/api/moves/tasks{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def ended(desk: Desk, order: dict[str, Any]) -> Any:
    """Start a task, and return it when it has ended."""
    task = await call(desk, "POST", "", order, 202)
    while task["state"] == "running":
        await asyncio.sleep(0.001)
        task = await call(desk, "GET", f"/{task['id']}")
    return task


async def fill(desk: Desk, count: int, *, group: str = "g") -> None:
    """Create the topics a and b, a group of a, and messages of a by ann and bob."""
    for name in ("a", "b"):
        await desk.http.post("/api/topics", json={"name": name, "queue_count": 2})
    if group:
        await desk.http.post("/api/groups", json={"name": group, "topic": "a"})
    if not count:
        return
    messages = [
        {"topic": "a", "body": str(n), "tag": "ann" if n % 3 else "bob", "keys": [f"k{n}"],
         "properties": {"n": str(n % 2)}}
        for n in range(count)
    ]  # fmt: skip
    assert (await desk.http.post("/api/messages", json={"messages": messages})).status_code == 200


async def bodies(desk: Desk, topic: str) -> list[str]:
    """Return the bodies of the messages of a topic."""
    query = {"after": "0:0,1:0", "limit": 1_000}
    answer = (await desk.http.get(f"/api/topics/{topic}/arrivals", params=query)).json()
    return sorted((one["body"] for one in answer["messages"]), key=int)


def test_what_matches_is_counted_moved_and_listed(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 120)
        order = {"source": "a", "target": "b", "filter": {"tag": "ann", "property": "n=1"}, "reason": "slow"}
        counted = await call(desk, "POST", "", order | {"dry_run": True})
        assert counted == {
            "dry_run": True,
            "matched": 40,
            "limit": None,
            "counted_until": None,
            "by_verdict": {"MOVED": 40},
            "reasons": {},
        }
        task = await ended(desk, order)
        assert (task["state"], task["matched"], task["by_verdict"]) == ("done", 40, {"MOVED": 40})
        assert (task["source"], task["target"], task["reason"]) == ("a", "b", "slow")
        assert await bodies(desk, "b") == [str(n) for n in range(120) if n % 3 and n % 2]
        use = (await desk.http.get("/api/topics/a/use")).json()
        assert use["unfinished"] == 80
        page = await call(desk, "GET", f"/{task['id']}/items?limit=1000")
        assert {(one["topic"], one["verdict"]) for one in page["items"]} == {("a", "MOVED")}
        names = [tuple(map(int, one["name"].split(":"))) for one in page["items"]]
        assert names == sorted(names), "queue by queue, by offset"
        assert len(names) == 40
        assert (await ended(desk, order))["matched"] == 0
        journal: list[Any] = []
        while len(journal) < 4:  # a task is done before its end is in the journal
            journal = (await desk.http.get("/api/journal", params={"about": "slow"})).json()["entries"]
        verbs = [one["verb"] for one in journal]
        assert sorted(verbs) == ["messages: task ended (move)"] * 2 + ["moves start task"] * 2
        assert (await call(desk, "GET", ""))["tasks"][1] == task

    at_desk(scenario)


def test_what_stays_is_counted_with_its_reason_before_and_after(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 6)
        receive = {"topic": "a", "count": 3, "lease": "1h"}
        held = (await desk.http.post("/api/groups/g/receive", json=receive)).json()["messages"]
        assert len(held) == 3
        failed = {"receipt_handles": [held[0]["receipt_handle"]], "after": "1h"}
        assert (await desk.http.post("/api/groups/g/nack", json=failed)).status_code == 200
        counted = await call(desk, "POST", "", {"source": "a", "target": "b", "dry_run": True})
        assert counted["by_verdict"] == {"MOVED": 4, "LEASED": 2}
        assert list(counted["reasons"]) == ["LEASED"]
        task = await ended(desk, {"source": "a", "target": "b"})
        assert (task["by_verdict"], task["reasons"]) == (counted["by_verdict"], counted["reasons"])
        assert "a consumer holds the message" in task["reasons"]["LEASED"]
        moved = await bodies(desk, "b")
        assert held[0]["body"] in moved, "no consumer has it: it waited for its next attempt"
        assert not {held[1]["body"], held[2]["body"]} & {*moved}

    at_desk(scenario)


def test_an_error_is_a_verdict_with_its_message(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 2)
        await desk.http.post("/api/topics", json={"name": "ordered", "message_type": "FIFO"})
        order = {"source": "a", "target": "ordered"}
        counted = await call(desk, "POST", "", order | {"dry_run": True})
        task = await ended(desk, order)
        assert task["by_verdict"] == counted["by_verdict"] == {"TW-144": 2}
        assert "'ordered' takes FIFO" in task["reasons"]["TW-144"]
        assert task["reasons"] == counted["reasons"]

    at_desk(scenario)


def test_without_a_group_a_message_that_stays_keeps_the_later_ones(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 0, group="")
        await desk.http.post("/api/topics", json={"name": "one", "queue_count": 1})
        await desk.http.post("/api/topics", json={"name": "ordered", "message_type": "FIFO"})
        for group in ("x", "", "x"):
            await desk.http.post("/api/messages", json={"topic": "one", "body": "b", "message_group": group})
        order = {"source": "one", "target": "ordered"}
        counted = await call(desk, "POST", "", order | {"dry_run": True})
        assert counted["by_verdict"] == {"MOVED": 1, "TW-144": 1, "TW-168": 1}
        task = await ended(desk, order)
        assert (task["by_verdict"], task["reasons"]) == (counted["by_verdict"], counted["reasons"])
        assert "tidewheel group create GROUP one" in task["reasons"]["TW-168"]

    at_desk(scenario)


def test_a_limit_moves_the_first_and_without_a_group_the_topic_begins_after_them(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 20, group="")
        task = await ended(desk, {"source": "a", "target": "b", "limit": 6})
        assert (task["matched"], task["limit"], task["by_verdict"]) == (20, 6, {"MOVED": 6})
        assert len(await bodies(desk, "b")) == 6
        assert len(await bodies(desk, "a")) == 14
        assert (await ended(desk, {"source": "a", "target": "b"}))["by_verdict"] == {"MOVED": 14}
        assert await bodies(desk, "a") == []
        filtered = {"source": "a", "target": "b", "filter": {"key": "k1"}}
        assert "leave the filter out" in (await call(desk, "POST", "", filtered, 409))["message"]

    at_desk(scenario)


def test_a_slow_task_is_stopped_and_messages_sent_meanwhile_stay(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 10)
        order = {"source": "a", "target": "b", "rate_per_second": 0.001}
        begun = await call(desk, "POST", "", order, 202)
        while not (await call(desk, "GET", f"/{begun['id']}"))["done"]:
            await asyncio.sleep(0.001)
        await desk.http.post("/api/messages", json={"topic": "a", "body": "99"})
        stopped = await call(desk, "DELETE", f"/{begun['id']}")
        assert (stopped["state"], stopped["done"], stopped["why"]) == ("stopped", 1, "an operator stopped it")
        assert len(await bodies(desk, "b")) == 1
        items = (await call(desk, "GET", f"/{begun['id']}/items"))["items"]
        assert [one["verdict"] for one in items] == ["MOVED"]

    at_desk(scenario)


@pytest.mark.parametrize(
    ("order", "status", "said"),
    [
        ({"source": "a"}, 400, "target"),
        ({"source": "a", "target": "a"}, 400, "name another"),
        ({"source": "a", "target": "none"}, 404, "none"),
        ({"source": "none", "target": "b"}, 404, "none"),
        ({"source": "a", "target": "b", "filter": {"property": "x"}}, 400, "NAME=VALUE"),
        ({"source": "a", "target": "b", "filter": {"topic": "x"}}, 400, "There are key, tag, property."),
        ({"source": "a", "target": "b", "limit": 0}, 400, "limit"),
        ({"source": "a", "target": "b", "rate_per_second": -1}, 400, "rate_per_second"),
        ({"source": "a", "target": "TW_SYS_JOURNAL"}, 400, "own topics"),
    ],
)
def test_what_cannot_be_is_refused(at_desk: AtDesk, order: dict[str, Any], status: int, said: str) -> None:
    async def scenario(desk: Desk) -> None:
        await fill(desk, 1)
        for more in ({}, {"dry_run": True}):
            assert said in (await call(desk, "POST", "", order | more, status))["message"]

    at_desk(scenario)
