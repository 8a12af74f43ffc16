"""`/api/dead-letters` over a real core: looked at, redriven and purged, one by one and by tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.live.bulk.tasks import batch_size, pause_seconds

Desk = Any
AtDesk = Callable[..., None]


async def call(desk: Desk, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """Ask for something under /api/dead-letters; the status must be as expected."""
    answer = await desk.http.request(method, f"/api/dead-letters{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def take(desk: Desk, group: str, topic: str) -> list[Any]:
    """Lease what there is."""
    return list(await desk.live.receivers.receive(group, topic, EVERYTHING, 32, 60_000, "c1", False, 0))


async def give_up(desk: Desk, topic: str, *keys: str, group: str = "g", tag: str = "") -> None:
    """Let a group give up a message for each key."""
    await desk.http.post("/api/topics", json={"name": topic, "queue_count": 1})
    for key in keys:
        message = Message(topic=topic, body=b"x", message_id=f"{topic}-{key}", keys=(key,), tag=tag)
        await desk.live.send(message)
    for delivery in await take(desk, group, topic):
        await desk.live.call(
            desk.live.core.receiving.forward_to_dead_letter, group, topic, delivery.receipt_handle
        )


async def keys_of(desk: Desk, group: str = "g", query: str = "") -> list[str]:
    """Return the keys of a group's dead letters that match."""
    page = await call(desk, "GET", f"/groups/{group}?{query}")
    return [dead_letter["keys"][0] for dead_letter in page["dead_letters"]]


async def ended(desk: Desk, task_id: str) -> Any:
    """Return a task when it has ended."""
    while (task := await call(desk, "GET", f"/tasks/{task_id}"))["state"] == "running":
        await asyncio.sleep(0.001)
    return task


def test_dead_letters_are_listed_by_group_page_and_filter(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        assert await call(desk, "GET", "") == {"groups": []}
        await give_up(desk, "t", "a", "b", tag="red")
        await give_up(desk, "u", "c")
        await give_up(desk, "u", "d", group="h")
        [first, second] = (await call(desk, "GET", ""))["groups"]
        assert (first["group"], first["count"], second["group"], second["count"]) == ("g", 3, "h", 2)
        assert first["oldest_ms"] == str(desk.now_ms)
        assert await keys_of(desk) == ["a", "b", "c"]
        assert await keys_of(desk, query="topic=u") == ["c"]
        assert await keys_of(desk, query="tag=red&key=b") == ["b"]
        assert await keys_of(desk, query="key=t-a") == ["a"], "a message id is a key, too"
        assert await keys_of(desk, query="reason=nothing-of-the-kind") == []
        assert await keys_of(desk, query="until=-1s") == []
        assert await keys_of(desk, query="from=-1s") == ["a", "b", "c"]
        page = await call(desk, "GET", "/groups/g?limit=2")
        assert (len(page["dead_letters"]), page["after"]) == (2, "1")
        rest = await call(desk, "GET", f"/groups/g?limit=2&after={page['after']}")
        assert ([dead_letter["keys"] for dead_letter in rest["dead_letters"]], rest["after"]) == (
            [["c"]],
            None,
        )

    at_desk(scenario)


def test_a_message_that_kills_every_consumer_is_listed_though_none_is_left(
    at_desk: AtDesk,
) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.live.send(Message(topic="t", body=b"poison", message_id="M1", keys=("k",)))
        await desk.http.post("/api/groups", json={"name": "g", "topic": "t"})
        await desk.http.put("/api/groups/g", json={"attempts_max": 2})
        for _ in range(2):
            assert len(await take(desk, "g", "t")) == 1
            await desk.advance("61s")
        assert await keys_of(desk) == ["k"]
        [dead_letter] = (await call(desk, "GET", "/groups/g"))["dead_letters"]
        assert (dead_letter["attempts"], dead_letter["reason"]) == (2, "attempts used up")

    at_desk(scenario)


def test_a_look_with_a_filter_ends_after_so_many_and_says_where_to_go_on(
    at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEAD_LETTERS_EXAMINED_AT_ONCE", 2)
    monkeypatch.setattr(limits, "DEAD_LETTERS_EXAMINED_MAX", 3)

    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", *"abcdefg")
        page = await call(desk, "GET", "/groups/g?key=g")
        assert (page["dead_letters"], page["after"]) == ([], "2")
        assert await keys_of(desk, query="key=g&after=5") == ["g"]
        counted = await call(desk, "POST", "/tasks", {"verb": "purge", "group": "g", "dry_run": True})
        assert counted["matched"] == 7

    at_desk(scenario)


def test_one_says_why_it_was_given_up_and_goes_back_for_its_group_alone(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", "a")
        for delivery in await take(desk, "other", "t"):
            await desk.live.call(desk.live.core.receiving.ack, "other", "t", delivery.receipt_handle)
        dead_letter = await call(desk, "GET", "/groups/g/0")
        assert (dead_letter["topic"], dead_letter["message"]["body"], dead_letter["message_id"]) == (
            "t",
            "x",
            "t-a",
        )
        assert dead_letter["reason"]
        done = await call(desk, "POST", "/groups/g/0/redrive", {})
        assert done == {"group": "g", "offset": "0", "verdict": "REDRIVEN"}
        [again] = await take(desk, "g", "t")
        assert (again.message.message_id, again.attempt) == ("t-a", 1)
        assert await take(desk, "other", "t") == []
        assert (await call(desk, "POST", "/groups/g/0/redrive", {}, 404))["code"] == "TW-152"
        assert await call(desk, "GET", "") == {"groups": []}

    at_desk(scenario)


def test_one_goes_to_another_topic_for_everybody_or_away_for_good(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", "a", "b")
        await desk.http.post("/api/topics", json={"name": "repair", "queue_count": 1})
        await call(desk, "POST", "/groups/g/0/redrive", {"target": "repair"})
        assert [one.message.keys for one in await take(desk, "anybody", "repair")] == [("a",)]
        purged = await call(desk, "DELETE", "/groups/g/1")
        assert purged["verdict"] == "PURGED"
        assert await keys_of(desk) == []

    at_desk(scenario)


def test_a_task_sends_back_what_matches_and_leaves_what_comes_meanwhile(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", *"abcdef")
        await give_up(desk, "u", "x")
        order = {"verb": "redrive", "group": "g", "filter": {"topic": "t"}}
        counted = await call(desk, "POST", "/tasks", order | {"dry_run": True})
        assert counted == {"dry_run": True, "matched": 6, "limit": None, "counted_until_ms": None}
        assert len(await keys_of(desk)) == 7
        begun = await call(desk, "POST", "/tasks", order | {"reason": "the bug is fixed"}, 202)
        task = await ended(desk, begun["id"])
        assert (task["state"], task["matched"], task["by_verdict"]) == ("done", 6, {"REDRIVEN": 6})
        assert task["reason"] == "the bug is fixed"
        assert await keys_of(desk) == ["x"]
        assert len(await take(desk, "g", "t")) == 6
        assert [one["id"] for one in (await call(desk, "GET", "/tasks"))["tasks"]] == [task["id"]]

    at_desk(scenario)


def test_a_task_with_a_limit_takes_the_oldest(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", *"abcdef")
        order = {"verb": "redrive", "group": "g", "limit": 2}
        counted = await call(desk, "POST", "/tasks", order | {"dry_run": True})
        assert counted == {"dry_run": True, "matched": 6, "limit": 2, "counted_until_ms": None}
        task = await ended(desk, (await call(desk, "POST", "/tasks", order, 202))["id"])
        assert (task["state"], task["matched"], task["limit"], task["done"]) == ("done", 6, 2, 2)
        items = (await call(desk, "GET", f"/tasks/{task['id']}/items"))["items"]
        assert [(one["topic"], one["name"], one["message_id"], one["verdict"]) for one in items] == [
            ("t", "0", "t-a", "REDRIVEN"),
            ("t", "1", "t-b", "REDRIVEN"),
        ]
        assert await keys_of(desk) == [*"cdef"]
        purge = {"verb": "purge", "group": "g", "limit": 9}
        assert (await ended(desk, (await call(desk, "POST", "/tasks", purge, 202))["id"]))["done"] == 4
        await call(desk, "POST", "/tasks", purge | {"limit": 0}, 400)

    at_desk(scenario)


def test_a_slow_task_can_be_stopped_at_once_and_a_brisk_one_does_the_rest(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", *"abcdef")
        order = {"verb": "purge", "group": "g", "rate_per_second": 0.001}
        begun = await call(desk, "POST", "/tasks", order, 202)
        while not (task := await call(desk, "GET", f"/tasks/{begun['id']}"))["done"]:
            await asyncio.sleep(0.001)
        stopped = await call(desk, "DELETE", f"/tasks/{begun['id']}")
        assert (stopped["state"], stopped["done"], stopped["why"]) == ("stopped", 1, "an operator stopped it")
        assert task["rate_per_second"] == 0.001
        assert len(await keys_of(desk)) == 5
        brisk = await call(desk, "POST", "/tasks", order | {"rate_per_second": 50}, 202)
        assert (await ended(desk, brisk["id"]))["by_verdict"] == {"PURGED": 5}

    at_desk(scenario)


def test_a_letter_that_somebody_else_took_is_counted_under_its_code(
    at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", *"abc")
        dead_letters = desk.live.core.dead_letters
        purge = dead_letters.purge

        def purge_after_somebody(group: str, offset: int, now_ms: int) -> int:
            if offset == 0:
                purge(group, 1, now_ms)
            return purge(group, offset, now_ms)

        monkeypatch.setattr(dead_letters, "purge", purge_after_somebody)
        begun = await call(desk, "POST", "/tasks", {"verb": "purge", "group": "g"}, 202)
        assert (await ended(desk, begun["id"]))["by_verdict"] == {"PURGED": 2, "TW-152": 1}

    at_desk(scenario)


def test_nothing_goes_back_to_a_topic_that_the_group_has_left(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", "a")
        await give_up(desk, "u", "b")
        await desk.live.call(desk.live.core.group_views.delete, "g", "t")
        refused = await call(desk, "POST", "/groups/g/0/redrive", {}, 404)
        assert "does not receive 't' any more" in refused["message"]
        begun = await call(desk, "POST", "/tasks", {"verb": "redrive", "group": "g"}, 202)
        assert (await ended(desk, begun["id"]))["by_verdict"] == {"REDRIVEN": 1, "TW-154": 1}
        await desk.live.call(desk.live.core.group_views.delete, "g", "")
        await call(desk, "POST", "/tasks", {"verb": "redrive", "group": "g"}, 404)
        await call(desk, "POST", "/groups/g/0/redrive", {"target": "u"})

    at_desk(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/groups/none", None, 404, "TW-154"),
        ("GET", "/groups/no no", None, 400, "TW-132"),
        ("GET", "/groups/g?from=tomorrow", None, 400, "TW-130"),
        ("GET", "/groups/g?from=1s&until=1h", None, 400, "TW-130"),
        ("GET", "/groups/g?colour=red", None, 400, "TW-130"),
        ("GET", "/groups/g/99", None, 404, "TW-152"),
        ("GET", "/groups/g/x", None, 404, "TW-152"),
        ("GET", f"/groups/g/{'9' * 40}", None, 404, "TW-152"),
        ("DELETE", "/groups/none/0", None, 404, "TW-152"),
        ("POST", "/groups/g/0/redrive", {"target": "none"}, 404, "TW-151"),
        ("POST", "/groups/g/0/redrive", {"to": "t"}, 400, "TW-130"),
        ("POST", "/tasks", {"verb": "purge", "group": "none"}, 404, "TW-154"),
        ("POST", "/tasks", {"verb": "redrive", "group": "g", "target": "none"}, 404, "TW-151"),
        ("POST", "/tasks", {"verb": "purge", "group": "g", "target": "t"}, 400, "TW-130"),
        ("POST", "/tasks", {"verb": "eat", "group": "g"}, 400, "TW-130"),
        ("POST", "/tasks", {"verb": "purge", "group": "g", "rate_per_second": -1}, 400, "TW-130"),
        ("GET", "/tasks/none", None, 404, "TW-150"),
        ("DELETE", "/tasks/none", None, 404, "TW-150"),
    ],
)
def test_what_cannot_be_is_refused(
    at_desk: AtDesk, method: str, path: str, body: object, status: int, code: str
) -> None:
    async def scenario(desk: Desk) -> None:
        await give_up(desk, "t", "a")
        assert (await call(desk, method, path, body, status))["code"] == code
        assert await keys_of(desk) == ["a"]

    at_desk(scenario)


def test_a_rate_makes_slices_of_a_tenth_of_a_second() -> None:
    def sliced(per_second: float) -> tuple[int, float]:
        size = batch_size(per_second)
        return size, pause_seconds(per_second, size)

    assert sliced(0) == (limits.TASK_SLICE, 0)
    assert sliced(1) == (1, 1)
    assert sliced(200) == (20, 0.1)
    assert sliced(1_000) == (limits.TASK_SLICE, 0.05)
