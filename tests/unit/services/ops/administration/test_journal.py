"""`/api/journal` over a real core: each change is noted, or is one of applications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from services.auth.vault import KEY_BYTES
from services.ops.administration.journal import BY_BOTH, DATA
from services.ops.routes import OPERATIONS
from tests.unit.services.ops.conftest import Desk

Play = Callable[[Callable[[Desk], Awaitable[None]]], None]


def test_the_tables_name_operations_that_exist() -> None:
    changing = {(one.method, one.path) for rows in OPERATIONS.values() for one in rows if one.method != "GET"}
    assert changing >= DATA | BY_BOTH


def test_acts_are_noted_with_their_results(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        async def entries(**query: Any) -> list[dict[str, str]]:
            found = (await desk.http.get("/api/journal", params=query)).json()
            return list(found["entries"])

        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await desk.set("orders", "1h", timer_key="k")
        await desk.post("/cancel", {"topic": "orders", "key": "none"}, 404)
        assert [one["verb"] for one in await entries()] == ["topics create topic"], "an application's verbs"

        await http.delete("/api/topics/orders", params={"reason": "old"})
        await desk.post("/cancel", {"topic": "orders", "key": "k", "reason": "asked"})
        cli = {"user-agent": "tidewheel-cli"}
        await http.post("/api/timers/cancel", json={"topic": "orders", "key": "k"}, headers=cli)
        await http.post("/api/topics/orders/purge", json={"nonsense": True})

        again, cancelled, refused, created = await entries()
        assert (created["about"], created["verdict"]) == ("name=orders queue_count=1", "done")
        assert (refused["verb"], refused["verdict"], refused["reason"]) == ("topics delete", "TW-168", "old")
        assert "1 timer " in refused["detail"]
        assert (cancelled["verb"], cancelled["verdict"]) == ("timers cancel", "CANCELLED")
        assert (cancelled["reason"], cancelled["about"]) == ("asked", "topic=orders key=k")
        assert (again["program"], again["verdict"]) == ("tidewheel-cli", "ALREADY")
        assert [one["verb"] for one in await entries(about="key=k")] == ["timers cancel", "timers cancel"]

    at_desk(scenario)


def test_a_check_back_that_nobody_was_there_for_is_noted_as_such(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        begun = await desk.http.post("/api/transactions", json={"topic": "t", "body": "x"})
        half = begun.json()["transaction_id"]
        answers = [(await desk.http.post(f"/api/transactions/{half}/check", json={})).json()]
        poll = {"topics": ["t"], "client": "shop-1", "wait": "10s"}
        polling = asyncio.ensure_future(desk.http.post("/api/transactions/check-backs", json=poll))
        while not (await desk.http.get("/api/transactions/producers")).json()["producers"]:
            await asyncio.sleep(0)
        answers.append((await desk.http.post(f"/api/transactions/{half}/check", json={})).json())
        assert len((await polling).json()["questions"]) == 1
        told = [(one["client_id"], one["verdict"]) for one in answers]
        assert told == [("", "NO_PRODUCER"), ("http@shop-1", "ASKED")]
        found = (await desk.http.get("/api/journal", params={"about": half})).json()["entries"]
        assert [(one["verb"], one["verdict"]) for one in found] == [
            ("transactions check", "ASKED"),
            ("transactions check", "NO_PRODUCER"),
        ]

    at_desk(scenario)


def test_secrets_are_not_noted(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
        made = await desk.http.post("/api/auth/users", json={"name": "ann"})
        token = await desk.http.post("/api/auth/tokens", json={"user": "ann"})
        assert (made.status_code, token.status_code) == (201, 201)
        text = (await desk.http.get("/api/journal")).text
        assert "ann" in text
        for answer in (made.json(), token.json()):
            secrets = [value for name, value in answer.items() if name in ("secret", "token")]
            assert secrets
            assert not any(secret in text for secret in secrets)

    at_desk(scenario)


def test_the_result_of_a_task_is_found_by_its_id(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        for number in range(3):
            await desk.set("orders", "1h", timer_key=f"k{number}")
        order = {"verb": "cancel", "filter": {"topic": "orders"}, "reason": "wrong price"}
        task = await desk.post("/tasks", order, 202)
        await desk.ended(task["id"])
        await desk.live.wait_until_all_durable()
        found = (await desk.http.get("/api/journal", params={"about": task["id"]})).json()["entries"]
        ended, started = found
        assert (started["verb"], started["verdict"]) == ("timers start task", "running")
        assert '"topic": "orders"' in started["about"]
        assert (ended["verdict"], ended["reason"]) == ("done", "wrong price")
        assert "matched=3 CANCELLED=3" in ended["about"]

    at_desk(scenario)


def test_a_stop_that_is_too_late_and_a_removal_have_a_true_result(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.set("orders", "1h")
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"topic": "orders"}}, 202)
        await desk.ended(task["id"])
        await desk.http.delete(f"/api/timers/tasks/{task['id']}")
        schedule = {"cron": "0 9 * * *", "topic": "orders", "body": "x"}
        made = await desk.http.put("/api/schedules/report", json=schedule)
        removed = await desk.http.delete("/api/schedules/report")
        assert (made.status_code, removed.status_code) == (201, 200)
        found = (await desk.http.get("/api/journal")).json()["entries"]
        verdicts = {one["verb"]: one["verdict"] for one in found}
        assert verdicts["timers stop task"] == "already done"
        assert verdicts["schedules delete"] == "done"
        assert verdicts["schedules set"] == "ACTIVE"

    at_desk(scenario)
