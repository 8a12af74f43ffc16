"""`/api/timers` over a real core on a virtual clock: set, look, verbs and their verdicts, tasks, refusals."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from commitlog import limits
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.values import DamagedPart
from services.live.queries import timer_queries
from services.ops.timers import timers

START_MS = 1_763_700_000_000
MINUTE_MS = 60_000


def test_a_timer_is_set_shown_and_listed(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        more = {"keys": ["order:1"], "tag": "unpaid", "timer_key": "pay:1", "properties": {"colour": "blue"}}
        receipt = await desk.set("orders", "30m", **more)
        assert receipt["due_ms"] == str(START_MS + 30 * MINUTE_MS)
        assert receipt["recall_handle"]
        by_name: list[dict[str, str]] = [
            {"topic": "orders", "id": receipt["message_id"]},
            {"topic": "orders", "key": "pay:1"},
            {"handle": receipt["recall_handle"]},
        ]
        shown = [await desk.get("/one", **name) for name in by_name]
        assert shown[0] == shown[1] == shown[2]
        assert shown[0]["message"]["body"] == "x"
        assert shown[0]["message"]["properties"]["colour"] == "blue"
        (listed,) = (await desk.get(""))["timers"]
        assert listed == {name: value for name, value in shown[0].items() if name not in ("message", "note")}
        assert listed | more | {"due_ms": receipt["due_ms"], "stored_ms": str(START_MS)} == listed | {
            "properties": {"colour": "blue"}
        }

    at_desk(scenario)


def test_a_moment_may_be_wall_time_with_its_zone_or_milliseconds(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        for at in ("2025-11-22T12:40:00+08:00", START_MS + 86_400_000, str(START_MS + 86_400_000)):
            receipt = await desk.post("", {"topic": "t", "body": "x", "at": at}, 201)
            assert receipt["due_ms"] == str(START_MS + 86_400_000)

    at_desk(scenario)


def test_pages_follow_the_due_time_through_ties(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        spans = ["3m", "1m", "2m", "2m", "2m", "5m", "4m"]
        receipts = [await desk.set("t", span) for span in spans]
        by_due = sorted(range(len(spans)), key=lambda number: (spans[number], number))
        wanted = [receipts[number]["message_id"] for number in by_due]
        seen, after = [], ""
        while after is not None:
            page = await desk.get("", limit=2, **({"after": after} if after else {}))
            seen += [timer["message_id"] for timer in page["timers"]]
            after = page["after"]
        assert seen == wanted

    at_desk(scenario)


def test_pages_that_take_long_are_continued(at_desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "SECONDS_MAX", 0)

    async def scenario(desk: Any) -> None:
        wanted = [(await desk.set("t", span))["message_id"] for span in ("1m", "2h", "3h", "200h")]
        seen, after, pages = list[str](), "", 0
        while after is not None:
            page = await desk.get("", limit=10, **({"after": after} if after else {}))
            seen += [timer["message_id"] for timer in page["timers"]]
            after, pages = page["after"], pages + 1
        assert (seen, pages > 2) == (wanted, True)

    at_desk(scenario)


def test_filters_select_in_lists_counts_and_histograms(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("orders", "1m", keys=["k1"], tag="a", properties={"who": "ann", "a=b": "c"})
        await desk.set("orders", "2m", timer_key="k2", tag="b", properties={"who": "bob", "vip": ""})
        await desk.set("orders-eu", "61m", keys=["k1", "k3", "k4", "k5"], properties={"who": "ann"})
        matches: list[tuple[dict[str, object], int]] = [
            ({}, 3),
            ({"topic": "orders"}, 2),
            ({"topic-prefix": "orders"}, 3),
            ({"topic": "orders", "key": "k1"}, 1),
            ({"topic": "orders", "key": "k2"}, 1),
            ({"key": "k1"}, 2),
            ({"tag": "b"}, 1),
            ({"message-key": "k1"}, 2),
            ({"message-key": "k1", "topic": "orders"}, 1),
            ({"message-key": "k5", "topic": "orders-eu"}, 1),
            ({"message-key": "k2"}, 0),
            ({"message-key": "k2", "topic": "orders"}, 0),
            ({"property": "who=ann"}, 2),
            ({"property": "who=ann", "topic": "orders"}, 1),
            ({"property": ["who=ann", "TW_TIMER_KEY=k2"]}, 0),
            ({"property": ["who=bob", "TW_TIMER_KEY=k2"]}, 1),
            ({"property": "who=a"}, 0),
            ({"property": "none=ann"}, 0),
            ({"from": "90s"}, 2),
            ({"from": START_MS + 60_000, "until": START_MS + 120_000}, 1),
            ({"until": "2025-11-21T05:00Z", "topic-prefix": "orders-"}, 0),
        ]
        for query, count in matches:
            assert len((await desk.get("", **query))["timers"]) == count, query
            assert (await desk.get("/count", **query)) == {"count": count, "counted_until_ms": None}, query
            histogram = await desk.get("/histogram", width="1h", **query)
            assert (histogram["count"], histogram["width_ms"]) == (count, "3600000"), query
        windows = (await desk.get("/histogram", width="1h", **{"from": START_MS}))["windows"]
        assert windows == [
            {"start_ms": str(START_MS), "count": 2},
            {"start_ms": str(START_MS + 3_600_000), "count": 1},
        ]

    at_desk(scenario)


def test_a_histogram_of_too_many_windows_is_refused(at_desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_WINDOWS_MAX", 1)

    async def scenario(desk: Any) -> None:
        await desk.set("t", "1m")
        await desk.set("t", "5m")
        refused = await desk.get("/histogram", 400)
        assert "choose a larger width" in refused["message"]
        assert (await desk.get("/histogram", width="1d"))["count"] == 2

    at_desk(scenario)


def test_a_summary_adds_up(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        for span in ("10s", "2m", "2m", "30m", "2h", "2d"):
            await desk.set("a", span)
        await desk.set("b", "1s")
        await desk.advance("1s")
        summary = await desk.get("/summary")
        assert (summary["pending"], summary["pending_by_topic"]) == (6, {"a": 6})
        assert summary["next_due_ms"] == str(START_MS + 9_000)
        assert [(due["within_ms"], due["count"]) for due in summary["due"]] == [
            ("60000", 1),
            ("300000", 2),
            ("3600000", 1),
            ("86400000", 1),
            (None, 1),
        ]
        on_time = {"delivered": 1, "p50_ms": 0, "p99_ms": 0, "max_ms": 0, "early_count": 0, "after_hold": 0}
        assert summary["lateness"] == summary["lateness_by_topic"]["b"] == on_time

    at_desk(scenario)


@pytest.mark.parametrize("named_by", ["id", "key", "handle"])
def test_verbs_answer_with_the_truth_whatever_names_the_timer(at_desk: Any, named_by: str) -> None:
    async def scenario(desk: Any) -> None:
        async def new(number: int) -> tuple[Any, Any]:
            receipt = await desk.set("t", "30m", timer_key=f"k{number}")
            names = {"id": receipt["message_id"], "key": f"k{number}", "handle": receipt["recall_handle"]}
            return receipt, {"topic": "t", named_by: names[named_by]}

        receipt, name = await new(1)
        due_ms = receipt["due_ms"]
        moved = await desk.post("/move", name | {"to": START_MS + MINUTE_MS, "reason": "sooner"})
        assert (moved["verdict"], moved["due_ms"], moved["ended_ms"]) == (
            "MOVED",
            due_ms,
            str(START_MS + MINUTE_MS),
        )
        assert moved["message_id"] == receipt["message_id"]
        cancelled = await desk.post("/cancel", name | {"reason": "paid"})
        assert (cancelled["verdict"], cancelled["due_ms"]) == ("CANCELLED", str(START_MS + MINUTE_MS))
        assert int(cancelled["ended_offset"]) > 0
        again = await desk.post("/cancel", name)
        assert (again["verdict"], again["ended_offset"]) == ("ALREADY", cancelled["ended_offset"])
        for verb, more in (("move", {"to": "1h"}), ("fire", {})):
            assert (await desk.post(f"/{verb}", name | more, 409))["verdict"] == "ALREADY"
        assert (await desk.get("/one", 410, **name))["verdict"] == "ALREADY"

        receipt, name = await new(2)
        fired = await desk.post("/fire", name)
        assert (fired["verdict"], fired["due_ms"]) == ("FIRED", receipt["due_ms"])
        for verb, more in (("cancel", {}), ("move", {"to": "1h"}), ("fire", {})):
            late = await desk.post(f"/{verb}", name | more, 409)
            ended = {"what": "fired", "note": "before its time, on request"}
            assert late == fired | {"verdict": "TOO_LATE", "message_id": late["message_id"]} | ended
        (found,) = await desk.live.receivers.receive("g", "t", EVERYTHING, 10, 20_000, "c", False, 0)
        assert found.message.message_id == receipt["message_id"]
        assert (await desk.get("/one", 410, **name))["verdict"] == "TOO_LATE"

    at_desk(scenario)


def test_what_was_never_set_is_404_and_what_is_long_over_is_forgotten(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("t", "1s")
        for name in ({"id": "0123"}, {"key": "nobody"}):
            for verb, more in (("cancel", {}), ("move", {"to": "1h"}), ("fire", {})):
                verdict = await desk.post(f"/{verb}", {"topic": "t"} | name | more, 404)
                assert (verdict["verdict"], verdict["ended_offset"]) == ("NEVER_SET", "-1")
            assert (await desk.get("/one", 404, topic="t", **name))["verdict"] == "NEVER_SET"
        forged = base64.urlsafe_b64encode(b"v1 t tidewheel 1000 0123").decode()
        assert (await desk.post("/cancel", {"handle": forged}, 404))["verdict"] == "FORGOTTEN"

    at_desk(scenario)


def test_a_timer_key_replaces_or_with_unique_is_refused(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        first = await desk.set("t", "30m", timer_key="k")
        second = await desk.set("t", "40m", timer_key="k")
        assert (await desk.get("/count"))["count"] == 1
        assert (await desk.get("/one", topic="t", key="k"))["message_id"] == second["message_id"]
        assert (await desk.post("/cancel", {"topic": "t", "id": first["message_id"]}))["verdict"] == "ALREADY"
        third = {"topic": "t", "body": "x", "in": "1h", "timer_key": "k", "unique": True}
        await desk.post("", third, 409)
        assert (await desk.get("/one", topic="t", key="k"))["message_id"] == second["message_id"]

    at_desk(scenario)


def test_a_batch_is_set_one_by_one_and_says_which_were_refused(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        timers: list[dict[str, object]] = [
            {"topic": "t", "body": "1", "in": "1m"},
            {"topic": "t", "body": "2", "in": "soon"},
            {"topic": "t", "body": "", "in": "1m"},
            {"topic": "t", "body": "4", "in": "2m"},
        ]
        answer = await desk.post("", {"timers": timers})
        assert (answer["set"], answer["refused"]) == (2, 2)
        assert [one.get("code") for one in answer["timers"]] == [None, "TW-138", "TW-141", None]
        assert [one["due_ms"] for one in answer["timers"] if "due_ms" in one] == [
            str(START_MS + MINUTE_MS),
            str(START_MS + 2 * MINUTE_MS),
        ]
        assert (await desk.get("/count"))["count"] == 2

    at_desk(scenario)


TIMER = {"topic": "t", "body": "x"}
FAR = 11 * 366 * 86_400_000


@pytest.mark.parametrize(
    ("path", "body", "code", "said"),
    [
        ("", TIMER, "TW-138", "either in"),
        ("", TIMER | {"in": "1m", "at": START_MS}, "TW-138", "either in"),
        ("", TIMER | {"in": -1}, "TW-138", "in is '-1'"),
        ("", TIMER | {"in": 30}, "TW-138", "no unit; write 30s for seconds, 30ms"),
        ("", TIMER | {"in": "30"}, "TW-138", "no unit; write 30s for seconds, 30ms"),
        ("", TIMER | {"in": "30 min"}, "TW-138", "write 30m"),
        ("", TIMER | {"in": "-1m"}, "TW-138", "a span is not negative; write 1m"),
        ("", TIMER | {"in": f"{FAR}ms"}, "TW-138", "limit"),
        ("", TIMER | {"in": "99999999999999d"}, "TW-138", "limit"),
        ("", TIMER | {"in": 10**400}, "TW-138", "write it as"),
        ("", TIMER | {"in": 1.5}, "TW-130", "in"),
        ("", TIMER | {"in": True}, "TW-130", "in"),
        ("", TIMER | {"at": START_MS + FAR}, "TW-138", "limit"),
        ("", TIMER | {"at": -START_MS}, "TW-138", "at is"),
        ("", TIMER | {"at": START_MS // 1000}, "TW-138", "seconds"),
        ("", TIMER | {"at": "2026-11-22T09:00"}, "TW-138", "zone"),
        ("", TIMER | {"in": "1m", "timer_key": "k" * 5_000}, "TW-1", "key"),
        ("", TIMER | {"in": "1m", "unique": True}, "TW-130", "timer_key"),
        ("", TIMER | {"in": "1m", "timer_key": "a", "properties": {"TW_TIMER_KEY": "b"}}, "TW-130", "once"),
        ("", TIMER | {"in": "1m", "colour": "blue"}, "TW-130", "misspelt"),
        ("", {"timers": []}, "TW-130", "timers"),
        ("", {"timers": [TIMER | {"in": "1m"}] * 1_001}, "TW-130", "timers"),
        ("/cancel", {"topic": "t"}, "TW-130", "one way"),
        ("/cancel", {"topic": "t", "id": "1", "key": "2"}, "TW-130", "one way"),
        ("/cancel", {"id": "1"}, "TW-130", "topic is missing"),
        ("/cancel", {"handle": "nonsense"}, "TW-147", "recall handle"),
        ("/move", {"handle": "nonsense", "to": "1m"}, "TW-147", "recall handle"),
        ("/cancel", {"topic": "t", "key": "k" * 5_000}, "TW-130", "key"),
        ("/cancel", {"topic": "t", "key": "k", "reason": "r" * 1_001}, "TW-130", "reason"),
        ("/move", {"topic": "t", "key": "k"}, "TW-130", "to"),
        ("/move", {"topic": "t", "key": "k", "to": "soon"}, "TW-138", "to is 'soon'"),
        ("/move", {"topic": "t", "key": "k", "to": START_MS + FAR}, "TW-138", "to"),
        ("/tasks", {"verb": "cancel"}, "TW-130", "filter"),
        ("/tasks", {"verb": "cancel", "filter": {}}, "TW-130", "everything"),
        (
            "/tasks",
            {"verb": "cancel", "filter": {"topc": "t"}},
            "TW-130",
            "filter.topc is not known here: write topic.",
        ),
        (
            "/tasks",
            {"verb": "cancel", "filter": {"colour": "t"}},
            "TW-130",
            "There are topic, topic-prefix, key, message-key, tag, property, from, until, held, everything.",
        ),
        ("/tasks", {"verb": "hurry", "filter": {"topic": "t"}}, "TW-130", "verb"),
        ("/tasks", {"verb": "fire", "filter": {"topic": "t"}, "by": "1h"}, "TW-130", "not for firing"),
        ("/tasks", {"verb": "cancel", "filter": {"topic": "t"}, "limit": 0}, "TW-130", "limit"),
        ("/tasks", {"verb": "cancel", "filter": {"property": "who"}}, "TW-130", "NAME=VALUE"),
        ("/tasks", {"verb": "cancel", "filter": {"property": {"a": "b"}}}, "TW-130", "property"),
        ("/tasks", {"verb": "cancel", "filter": {"topic": "t"}, "by": "1h"}, "TW-130", "for moving"),
        ("/tasks", {"verb": "move", "filter": {"topic": "t"}}, "TW-130", "either to"),
        ("/tasks", {"verb": "move", "filter": {"topic": "t"}, "by": "1x"}, "TW-138", "by is"),
        ("/tasks", {"verb": "move", "filter": {"topic": "t"}, "by": "99999d"}, "TW-138", "ahead"),
        ("/tasks", {"verb": "move", "filter": {"topic": "t"}, "to": START_MS + FAR}, "TW-138", "ahead"),
        ("/tasks", {"verb": "cancel", "filter": {"from": "2h", "until": "1h"}}, "TW-130", "reversed"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(
    at_desk: Any, path: str, body: object, code: str, said: str
) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("t", "1m", timer_key="k")
        before = desk.live.core.end_offset
        refused = await desk.post(path, body, 400)
        assert refused["code"].startswith(code), refused
        assert said in refused["message"]
        assert len(refused["message"]) < 400
        assert desk.live.core.end_offset == before

    at_desk(scenario)


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("", {"limit": 0}, "limit is '0'"),
        ("", {"limit": 1_001}, "limit is '1001'"),
        ("", {"limit": "many"}, "limit is 'many'"),
        ("", {"after": "then"}, "after is 'then'"),
        ("", {"after": "1"}, "after is '1'"),
        ("", {"after": "1:-2"}, "after is '1:-2'"),
        ("", {"topc": "t"}, "topc"),
        ("", {"from": "2h", "until": "1h"}, "reversed or empty"),
        ("", {"from": "1h", "until": "1h"}, "reversed or empty"),
        ("/count", {"from": "9" * 30}, "no clock"),
        ("/count", {"until": "-1"}, "until is '-1'"),
        ("/count", {"until": "2026-11-22T09:00"}, "zone"),
        ("/count", {"key": "k" * 5_000}, "key"),
        ("/count", {"message-key": "k" * 5_000}, "message-key"),
        ("/count", {"property": "who"}, "property is 'who': write it as NAME=VALUE"),
        ("/count", {"property": "=ann"}, "NAME=VALUE"),
        ("/count", {"property": [f"p{n}=1" for n in range(21)]}, "property"),
        ("/histogram", {"width": "0"}, "width is 0"),
        ("/histogram", {"width": "0s"}, "width is 0"),
        ("/histogram", {"width": "-1m"}, "width is '-1m'"),
        ("/histogram", {"width": "wide"}, "width is 'wide'"),
        ("/one", {"topic": "t"}, "one way"),
        ("/one", {"key": "k"}, "topic is missing"),
        ("/one", {"handle": "x"}, "recall handle"),
    ],
)
def test_a_question_that_cannot_be_is_refused(
    at_desk: Any, path: str, query: dict[str, object], said: str
) -> None:
    async def scenario(desk: Any) -> None:
        assert said in (await desk.get(path, 400, **query))["message"]

    at_desk(scenario)


def test_a_handle_of_another_topic_is_refused(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        receipt = await desk.set("t", "1m")
        other = {"topic": "other", "handle": receipt["recall_handle"]}
        assert (await desk.post("/cancel", other, 400))["code"] == "TW-147"
        assert (await desk.get("/count"))["count"] == 1

    at_desk(scenario)


async def crowd(desk: Any, count: int) -> None:
    """Set timers for two topics, every third for the second, a second apart."""
    timers = [
        {"topic": "even" if number % 3 else "third", "body": str(number), "in": f"{60 + number}s"}
        for number in range(count)
    ]
    for first in range(0, count, 500):
        answer = await desk.post("", {"timers": timers[first : first + 500]})
        assert answer["refused"] == 0


def test_many_are_counted_first_then_cancelled_by_a_task(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 900)
        wanted = {"verb": "cancel", "filter": {"topic": "third"}, "reason": "campaign over"}
        counted = await desk.post("/tasks", wanted | {"dry_run": True})
        assert counted == {"dry_run": True, "matched": 300, "limit": None, "counted_until_ms": None}
        assert (await desk.get("/count"))["count"] == 900
        task = await desk.post("/tasks", wanted, 202)
        assert (task["state"], task["matched"], task["done"]) == ("running", None, 0)
        ended = await desk.ended(task["id"])
        assert (ended["state"], ended["matched"], ended["by_verdict"]) == ("done", 300, {"CANCELLED": 300})
        assert ended["done"] == 300
        assert ended["reason"] == "campaign over"
        assert (await desk.get("/tasks"))["tasks"] == [ended]
        assert (await desk.get("/summary"))["pending_by_topic"] == {"even": 600}

    at_desk(scenario)


@pytest.mark.parametrize("verb", ["cancel", "move", "fire"])
@pytest.mark.parametrize("limit", [1, 50, 75, 300])
def test_a_task_with_a_limit_changes_the_earliest(at_desk: Any, verb: str, limit: int) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 180)
        by = {"by": "10h"} if verb == "move" else {}
        wanted = {"verb": verb, "filter": {"topic": "even"}, "limit": limit, **by}
        counted = await desk.post("/tasks", wanted | {"dry_run": True})
        assert counted == {"dry_run": True, "matched": 120, "limit": limit, "counted_until_ms": None}
        task = await desk.ended((await desk.post("/tasks", wanted, 202))["id"])
        changed = min(limit, 120)
        verdict = {"cancel": "CANCELLED", "move": "MOVED", "fire": "FIRED"}[verb]
        assert (task["state"], task["matched"], task["limit"]) == ("done", 120, limit)
        assert task["by_verdict"] == {verdict: changed}
        left = (await desk.get("", topic="even", until="9h", limit=1_000))["timers"]
        assert len(left) == 120 - changed
        dues = [int(one["due_ms"]) for one in (await desk.get("", topic="third", limit=1_000))["timers"]]
        assert len(dues) == 60, "another topic is left alone"
        offsets = [number for number in range(180) if number % 3]
        assert [int(one["due_ms"]) for one in left] == [
            START_MS + (60 + number) * 1_000 for number in offsets[changed:]
        ]

    at_desk(scenario)


def test_many_are_moved_each_once_though_they_land_in_front_of_the_task(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 600)
        wanted = {"verb": "move", "filter": {"everything": True}}
        later = await desk.ended((await desk.post("/tasks", wanted | {"by": "5m"}, 202))["id"])
        assert (later["state"], later["by_verdict"]) == ("done", {"MOVED": 600})
        dues = [int(timer["due_ms"]) for timer in (await desk.get("", limit=1000))["timers"]]
        assert dues == [START_MS + (360 + number) * 1000 for number in range(600)]
        sooner = await desk.ended((await desk.post("/tasks", wanted | {"by": "-5m"}, 202))["id"])
        assert sooner["by_verdict"] == {"MOVED": 600}
        together = await desk.ended((await desk.post("/tasks", wanted | {"to": "1h"}, 202))["id"])
        assert together["by_verdict"] == {"MOVED": 600}
        assert (await desk.get("/count", **{"from": "1h", "until": START_MS + 3_600_001}))["count"] == 600

    at_desk(scenario)


def test_a_task_is_stopped_and_the_rest_waits_on(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 900)
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"everything": True}}, 202)
        stopped = (await desk.http.delete(f"/api/timers/tasks/{task['id']}")).json()
        assert stopped.pop("already_ended") is False
        assert (stopped["state"], stopped["why"]) == ("stopped", "an operator stopped it")
        assert stopped["done"] < 900
        assert (await desk.get("/count"))["count"] == 900 - stopped["done"]
        again = (await desk.http.delete(f"/api/timers/tasks/{task['id']}")).json()
        assert again == stopped | {"already_ended": True}

    at_desk(scenario)


def test_the_items_of_a_task_are_listed_in_its_order_with_their_verdicts(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 180)
        await desk.set("third", "1h", timer_key="k")
        wanted = {"verb": "cancel", "filter": {"topic": "third"}}
        others = [await desk.post("/tasks", wanted | {"filter": {"topic": "even"}}, 202) for _ in range(2)]
        task = await desk.ended((await desk.post("/tasks", wanted, 202))["id"])
        for other in others:
            await desk.ended(other["id"])
        found, after = [], ""
        while after is not None:
            page = await desk.get(f"/tasks/{task['id']}/items", limit=7, after=after)
            assert len(page["items"]) == 7 or page["after"] is None
            found, after = found + page["items"], page["after"]
        assert len(found) == 61
        assert {(one["topic"], one["verdict"], one["at_ms"]) for one in found} == {
            ("third", "CANCELLED", str(START_MS))
        }
        assert [one["name"] for one in found if one["name"]] == ["k"]
        ids = [one["message_id"] for one in found]
        assert len({*ids}) == 61
        whole = (await desk.get(f"/tasks/{task['id']}/items", limit=1_000))["items"]
        assert whole == found
        twice = [one for other in others for one in await items_of(desk, other["id"])]
        assert {"CANCELLED"} <= {one["verdict"] for one in twice} <= {"ALREADY", "CANCELLED"}
        assert len(twice) == sum([(await desk.get(f"/tasks/{one['id']}"))["done"] for one in others])
        none = await desk.ended((await desk.post("/tasks", wanted, 202))["id"])
        assert await items_of(desk, none["id"]) == []
        for after in ("then", "1", "1:-2"):
            await desk.get(f"/tasks/{task['id']}/items", 400, after=after)
        assert "journal" in (await desk.get("/tasks/none/items", 404))["message"]
        letters = await desk.http.get(f"/api/dead-letters/tasks/{task['id']}/items")
        assert letters.status_code == 404, "it is no task over dead letters"

    at_desk(scenario)


async def items_of(desk: Any, task_id: str) -> list[Any]:
    """Return the items of a task."""
    return list((await desk.get(f"/tasks/{task_id}/items", limit=1_000))["items"])


def test_a_task_that_still_counts_is_stopped_before_it_begins(
    at_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_timers = timer_queries.count_timers

    async def count_without_end(*arguments: Any) -> None:
        await count_timers(*arguments)
        await asyncio.Event().wait()

    async def scenario(desk: Any) -> None:
        await crowd(desk, 300)
        monkeypatch.setattr(timer_queries, "count_timers", count_without_end)
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"topic-prefix": "e"}}, 202)
        assert task["matched"] is None
        monkeypatch.undo()
        for tasks in desk.app.state.tasks:
            await tasks.close()
        stopped = await desk.get(f"/tasks/{task['id']}")
        assert (stopped["state"], stopped["done"], stopped["why"]) == ("stopped", 0, "the broker ends")
        assert (await desk.get("/count"))["count"] == 300

    at_desk(scenario)


def test_others_are_served_between_the_slices_of_a_task(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 900)
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"topic-prefix": "e"}}, 202)
        receipt = await desk.set("even", "90s")
        assert (await desk.get(f"/tasks/{task['id']}"))["state"] == "running", "the send had to wait for it"
        await desk.ended(task["id"])
        assert (await desk.get("/one", handle=receipt["recall_handle"]))["topic"] == "even"

    at_desk(scenario)


def test_what_fired_before_its_turn_is_too_late_and_counted(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 900)
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"everything": True}}, 202)
        await asyncio.gather(desk.advance("1d"), desk.ended(task["id"]))
        ended = await desk.get(f"/tasks/{task['id']}")
        delivered = 0
        for topic in ("even", "third"):
            while found := await desk.live.receivers.receive(
                "g", topic, EVERYTHING, 32, 20_000, "c", False, 0
            ):
                delivered += len(found)
        assert ended["by_verdict"].get("CANCELLED", 0) + delivered == 900

    at_desk(scenario)


@pytest.mark.parametrize("more", [{}, {"dry_run": True}])
def test_a_task_over_an_unknown_topic_is_refused(at_desk: Any, more: dict[str, bool]) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 2)
        refused = await desk.post("/tasks", {"verb": "cancel", "filter": {"topic": "evn"}} | more, 404)
        assert "There is no 'evn'" in refused["message"]
        assert (await desk.get("/tasks")) == {"tasks": []}

    at_desk(scenario)


@pytest.mark.parametrize("path", ["", "/count", "/histogram"])
def test_a_query_over_an_unknown_topic_is_refused(at_desk: Any, path: str) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 2)
        refused = await desk.get(path, 404, topic="evn")
        assert refused["code"] == "TW-151"
        assert "Create it: tidewheel topic create evn" in refused["message"]
        await desk.get(path, topic="even")
        await desk.get(path, **{"topic-prefix": "evn"})

    at_desk(scenario)


@pytest.mark.parametrize("path", ["", "/count", "/histogram"])
def test_timers_whose_topic_was_lost_to_damage_are_still_listed_and_cancelled(
    at_desk: Any, path: str
) -> None:
    async def scenario(desk: Any) -> None:
        await crowd(desk, 3)
        del desk.live.core.topics._topics["even"]
        found = await desk.get(path, topic="even")
        assert found.get("count", len(found.get("timers", ()))) == 2
        task = await desk.post("/tasks", {"verb": "cancel", "filter": {"topic": "even"}}, 202)
        assert (await desk.ended(task["id"]))["by_verdict"] == {"CANCELLED": 2}
        assert (await desk.get(path, 404, topic="even"))["code"] == "TW-151"

    at_desk(scenario)


def test_an_unknown_task_is_to_be_looked_for_in_the_journal(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        refused = await desk.get("/tasks/0123456789ab", 404)
        assert "tidewheel journal --about 0123456789ab" in refused["message"]
        assert (await desk.http.delete("/api/timers/tasks/0123456789ab")).status_code == 404
        assert (await desk.get("/tasks")) == {"tasks": []}

    at_desk(scenario)


def test_there_are_only_so_many_tasks_at_once(at_desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_RUNNING_MAX", 1)
    monkeypatch.setattr(limits, "TASKS_KEPT_MAX", 2)

    async def scenario(desk: Any) -> None:
        await crowd(desk, 900)
        wanted = {"verb": "move", "by": "1s", "filter": {"everything": True}}
        first = await desk.post("/tasks", wanted, 202)
        assert (await desk.post("/tasks", wanted, 503))["code"] == "TW-170"
        await desk.ended(first["id"])
        for _ in range(2):
            await desk.ended((await desk.post("/tasks", wanted | {"filter": {"tag": "none"}}, 202))["id"])
        kept = (await desk.get("/tasks"))["tasks"]
        assert len(kept) == 2
        assert first["id"] not in {task["id"] for task in kept}

    at_desk(scenario)


def test_times_are_real_time_however_far_the_clock_was_advanced(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.advance("10d")
        receipt = await desk.set("t", "1h", timer_key="k")
        assert receipt["due_ms"] == str(START_MS + 60 * MINUTE_MS)
        (listed,) = (await desk.get("", until="61m", **{"from": "59m"}))["timers"]
        assert (listed["due_ms"], listed["stored_ms"]) == (receipt["due_ms"], str(START_MS))
        (window,) = (await desk.get("/histogram", width="1m", **{"from": START_MS}))["windows"]
        assert window["start_ms"] == receipt["due_ms"]
        assert (await desk.get("/summary"))["next_due_ms"] == receipt["due_ms"]
        moved = await desk.post("/move", {"topic": "t", "key": "k", "to": "2h"})
        assert (moved["due_ms"], moved["ended_ms"]) == (receipt["due_ms"], str(START_MS + 120 * MINUTE_MS))
        task = await desk.post("/tasks", {"verb": "move", "by": "1h", "filter": {"topic": "t"}}, 202)
        await desk.ended(task["id"])
        assert (await desk.get("/one", topic="t", key="k"))["due_ms"] == str(START_MS + 180 * MINUTE_MS)
        cancelled = await desk.post("/cancel", {"topic": "t", "key": "k"})
        assert (cancelled["ended_ms"], cancelled["due_ms"]) == (
            str(START_MS),
            str(START_MS + 180 * MINUTE_MS),
        )
        first, second = [await desk.set("t", span) for span in ("1h", "2h")]
        page = await desk.get("", limit=1)
        assert page["timers"][0]["message_id"] == first["message_id"]
        (rest,) = (await desk.get("", after=page["after"]))["timers"]
        assert rest["message_id"] == second["message_id"]

    at_desk(scenario)


def test_what_is_damaged_is_listed_counted_and_told_by_the_probes(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("orders", "5h")
        nothing = await desk.get("/damaged")
        assert nothing == {"count": 0, "rebuilt": 0, "unreadable": 0, "damage": [], "timers": []}
        assert (await desk.http.get("/readyz")).text == "ready\n"
        core = desk.live.core
        core.damage.report(DamagedPart("partition", "timers/x", "timers/x is damaged.", 3, 1))
        core.timers.end_unreadable_timer("orders", 4711, START_MS + MINUTE_MS, START_MS)
        found = await desk.get("/damaged", limit=1)
        assert (found["count"], found["unreadable"]) == (1, 1)
        part = {
            "part": "partition",
            "path": "timers/x",
            "what": "timers/x is damaged.",
            "rebuilt": 3,
            "lost": 1,
        }
        assert found["damage"] == [part]
        due_ms = str(START_MS + MINUTE_MS)
        lost = {"timer_offset": "4711", "topic": "orders", "due_ms": due_ms, "ended_ms": str(START_MS)}
        assert found["timers"] == [lost]
        ready = await desk.http.get("/readyz")
        assert ready.status_code == 200
        assert "damaged: 1" in ready.text
        desk.live.warnings = lambda: ["the shared log is damaged: Record 7 is missing."]
        assert (await desk.http.get("/readyz")).text.endswith(
            "\nthe shared log is damaged: Record 7 is missing.\n"
        )
        scraped = (await desk.http.get("/metrics")).text
        assert "mq_store_damage{" in scraped
        assert "mq_timers_unreadable{" in scraped

    at_desk(scenario)


def test_a_timer_that_was_moved_to_a_past_time_is_told_as_such(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("t", "1h", timer_key="k")
        await desk.post("/move", {"topic": "t", "key": "k", "to": "30m ago"})
        await desk.advance("10ms")
        told = "30m after its time, since it was moved to a time in the past"
        found = await desk.http.get("/api/messages", params={"topic": "t", "key": "k"})
        assert [one["note"] for one in found.json()["messages"]][1] == told
        assert (await desk.post("/cancel", {"topic": "t", "key": "k"}, 409))["note"] == told
        explained = (await desk.http.get("/api/explain", params={"name": "k"})).json()["events"]
        notes = [one["note"].partition(";")[0] for one in explained]
        assert notes[2:] == ["sent by 127.0.0.1, moved to a time 30m in the past", told]

    at_desk(scenario)


def test_a_reversed_window_and_a_far_time_are_refused_in_words(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        refused = await desk.get("", 400, **{"from": "2026-11-29T10:00Z", "until": "2026-11-29T09:00Z"})
        window = "from 2026-11-29T10:00:00.000Z until 2026-11-29T09:00:00.000Z."
        assert refused["message"].endswith(f"The window is reversed or empty: {window}")
        far = await desk.post("", {"topic": "t", "body": "x", "in": "4000d"}, 400)
        assert "It is due in 4000d, the limit is 3660d. " in far["message"]
        for topic, said in (("", "Its name is empty."), ("a b", "'a b' may hold only a-z, A-Z, 0-9, '_'")):
            refused = await desk.http.post("/api/messages", json={"topic": topic, "body": "x"})
            assert said in refused.json()["message"], topic

    at_desk(scenario)


@pytest.mark.parametrize(("verb", "more"), [("cancel", {}), ("fire", {}), ("move", {"to": "in 3h"})])
def test_a_timer_that_another_caller_has_moved_since_is_left_as_it_is(
    at_desk: Any, verb: str, more: dict[str, str]
) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("t", "1h", timer_key="k")
        seen = {"due_ms": (await desk.get("/one", topic="t", key="k"))["due_ms"]}
        await desk.post("/move", {"topic": "t", "key": "k", "to": "in 2h"})
        named = {"topic": "t", "key": "k", "seen": seen, **more}
        refused = await desk.post(f"/{verb}", named, 409)
        assert refused["code"] == "TW-160"
        told = "The timer was changed since you saw it: its due time from 2025-11-21T05:40:00.000Z to "
        assert f"{told}2025-11-21T06:40:00.000Z. Look at it again" in refused["message"]
        now = await desk.get("/one", topic="t", key="k")
        await desk.post(f"/{verb}", named | {"seen": {"due_ms": now["due_ms"]}})
        if verb == "cancel":
            ended = await desk.post(f"/{verb}", named)
            assert ended["verdict"] == "ALREADY", "the verdict on a timer that has ended"

    at_desk(scenario)


def test_a_move_that_is_repeated_is_not_refused_for_its_own_change(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.set("t", "1h", timer_key="k")
        seen = {"due_ms": (await desk.get("/one", topic="t", key="k"))["due_ms"]}
        wanted = {"topic": "t", "key": "k", "to": START_MS + 7_200_000, "seen": seen}
        for _ in range(2):
            assert (await desk.post("/move", wanted))["verdict"] == "MOVED"

    at_desk(scenario)
