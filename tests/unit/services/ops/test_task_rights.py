"""A task over many things goes on only as long as the right of the user that started it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.auth.rights import Effect, Kind, Verb
from tests.unit.services.ops.test_tokens import RECEIVE_T, SEND_T, AtDesk, Guarded, guarded

Desk = Any
TIMERS, LETTERS = "/api/timers/tasks", "/api/dead-letters/tasks"
ADMIN_T, ADMIN_G = (Verb.ADMIN, Kind.TOPIC, "t"), (Verb.ADMIN, Kind.GROUP, "g")
SET_COUNT = 10 * limits.TASK_SLICE
LETTER_COUNT = 5


async def set_timers(one: Guarded) -> None:
    """Set more timers than a task ends in one slice."""
    timers = [{"topic": "t", "body": "x", "in": "1h"} for _ in range(SET_COUNT)]
    set_ = await one.call("", "POST", "/api/timers", {"timers": timers})
    assert set_.json()["set"] == SET_COUNT


async def give_up(one: Guarded) -> None:
    """Make dead letters of group g, and topic `target`."""
    await one.desk.http.post("/api/topics", json={"name": "target", "queue_count": 1})
    for number in range(LETTER_COUNT):
        await one.live.send(Message(topic="t", body=b"x", message_id=f"L{number}"))
    got = (await one.call("", "POST", "/api/groups/g/receive", {"topic": "t"})).json()["messages"]
    handles = [message["receipt_handle"] for message in got]
    gone = {"receipt_handles": handles, "dead_letter": True}
    assert (await one.call("", "POST", "/api/groups/g/nack", gone)).json()["done"] == LETTER_COUNT


async def take_away(one: Guarded, how: str) -> None:
    """Take the user's token, user, right or time away."""
    access = one.live.access
    match how:
        case "revoke":
            [token] = access.tokens("ops")
            await access.revoke_token(token.id)
        case "remove":
            await access.remove_user("ops")
        case "deny":
            await one.allow("ops", ADMIN_T, SEND_T, effect=Effect.DENY)
            await one.allow("ops", ADMIN_G, effect=Effect.DENY)
        case _:
            one.desk.now_ms += 1_000
            assert (await one.call("", "POST", "/api/clock/advance", {"by": "1s"})).status_code == 200


async def begun(one: Guarded, path: str, body: Any, how: str = "") -> dict[str, Any]:
    """Start a task as the user ops."""
    await one.user("ops", ADMIN_T, ADMIN_G, SEND_T, (Verb.SEND, Kind.TOPIC, "target"), *RECEIVE_T)
    if how == "expire":
        one.tokens["ops"] = (await one.live.access.add_token("ops", 1_000))[0]
    started = await one.call("ops", "POST", path, body)
    assert started.status_code == 202, started.text
    return dict(started.json())


async def ended(one: Guarded, path: str, task_id: str) -> dict[str, Any]:
    """Return a task when it has ended."""
    while (task := (await one.call("", "GET", f"{path}/{task_id}")).json())["state"] == "running":
        await asyncio.sleep(0.001)
    return dict(task)


LOSSES = [
    ("revoke", "was revoked"),
    ("remove", "was revoked"),
    ("deny", "'ops' has not admin on topic 't'"),
    ("expire", "has expired"),
]


@pytest.mark.parametrize(("how", "said"), LOSSES)
def test_a_task_over_timers_stops_when_its_starter_loses_the_right(
    at_desk: AtDesk, how: str, said: str
) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await set_timers(one)
            task = await begun(one, TIMERS, {"verb": "cancel", "filter": {"topic": "t"}}, how)
            await take_away(one, how)
            task = await ended(one, TIMERS, task["id"])
            assert (task["state"], said in task["why"]) == ("stopped", True), task
            left = (await one.call("", "GET", "/api/timers/count?topic=t")).json()["count"]
            assert (left > 0, left + task["done"]) == (True, SET_COUNT), "the rest is as it was"
            assert not one.live.access.watching

    at_desk(scenario)


@pytest.mark.parametrize(("how", "said"), LOSSES)
@pytest.mark.parametrize("target", ["target", ""])
def test_a_task_over_dead_letters_stops_too(at_desk: AtDesk, target: str, how: str, said: str) -> None:
    body = {"verb": "redrive", "group": "g", "target": target, "rate_per_second": 0.5}

    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await give_up(one)
            task = await begun(one, LETTERS, body, how)
            while not (await one.call("", "GET", f"{LETTERS}/{task['id']}")).json()["done"]:
                await asyncio.sleep(0.001)  # it redrives one in two seconds
            await take_away(one, how)
            task = await ended(one, LETTERS, task["id"])
            assert (task["state"], said.replace("topic 't'", "group 'g'") in task["why"]) == ("stopped", True)
            assert task["done"] == 1
            assert not one.live.access.watching

    at_desk(scenario)


def test_a_task_goes_on_while_other_rights_change_and_when_the_administrator_began_it(
    at_desk: AtDesk,
) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await set_timers(one)
            cancel = {"verb": "cancel", "filter": {"topic": "t"}}
            task = await begun(one, TIMERS, cancel)
            assert len(one.live.access.watching) == 1
            await one.user("others", SEND_T)
            await one.live.access.remove_user("others")
            assert (await ended(one, TIMERS, task["id"]))["state"] == "done"
            assert not one.live.access.watching
            started = await one.call("", "POST", TIMERS, cancel)
            assert not one.live.access.watching
            await one.live.access.remove_user("ops")
            assert (await ended(one, TIMERS, started.json()["id"]))["state"] == "done"

    at_desk(scenario)


def test_a_task_that_did_all_before_its_right_was_lost_is_done(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await give_up(one)
            task = await begun(one, LETTERS, {"verb": "purge", "group": "g"})
            task = await ended(one, LETTERS, task["id"])
            await one.live.access.remove_user("ops")
            assert (task["state"], task["done"], task["why"]) == ("done", LETTER_COUNT, "")

    at_desk(scenario)
