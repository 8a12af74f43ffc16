"""`/api/topics` over a real core: topics listed, altered, purged and deleted, and their newest messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.services.ops.conftest import START_MS, Desk

Play = Callable[[Callable[[Desk], Awaitable[None]]], None]


def test_a_topic_is_shown_in_use_purged_and_deleted(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await http.post("/api/groups", json={"name": "shop", "topic": "orders"})
        for _ in range(3):
            await http.post("/api/messages", json={"topic": "orders", "body": "x"})
        use = (await http.get("/api/topics/orders/use")).json()
        assert (use["messages"], use["unfinished"], use["timers"]) == (3, 3, 0)
        assert use["groups"] == [{"group": "shop", "unfinished": 3, "dead_letters": 0}]

        refused = await http.post("/api/topics/orders/purge", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-168")
        assert "tidewheel topic purge orders --discard --unfinished 3 --yes" in refused.json()["message"]
        assert (await http.post("/api/topics/orders/purge", json={"discard": True})).status_code == 200

        await desk.set("orders", "1h", timer_key="k")
        refused = await http.delete("/api/topics/orders", params={"discard": "true"})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-168")
        assert "1 timer " in refused.json()["message"]
        await desk.post("/cancel", {"topic": "orders", "key": "k"})
        assert (await http.delete("/api/topics/orders")).status_code == 200
        assert (await http.get("/api/topics/orders")).status_code == 404
        assert (await http.get("/api/groups/shop")).status_code == 404

    at_desk(scenario)


def test_a_topic_is_altered(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "message_type": "NORMAL", "queue_count": 1})
        altered = await http.put("/api/topics/orders", json={"message_type": "MIXED", "queue_count": 4})
        shape = {"name": "orders", "message_type": "MIXED", "queue_count": 4, "expired": None}
        assert altered.json() == shape
        for body, status in (({}, 400), ({"queue_count": 2}, 400), ({"message_type": "LITE"}, 400)):
            assert (await http.put("/api/topics/orders", json=body)).status_code == status
        assert (await http.put("/api/topics/none", json={"queue_count": 2})).status_code == 404

    at_desk(scenario)


def test_a_retention_is_previewed_set_and_removed(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await http.post("/api/groups", json={"name": "shop", "topic": "orders"})
        for _ in range(3):
            await http.post("/api/messages", json={"topic": "orders", "body": "x"})
        await http.post("/api/clock/advance", json={"by": "1h"})
        await http.post("/api/messages", json={"topic": "orders", "body": "y"})
        use = (await http.get("/api/topics/orders/use", params={"retention": "30m"})).json()
        assert (use["messages"], use["expired"]) == (4, {"messages": 3, "unfinished": 3})
        assert (await http.get("/api/topics/orders/use")).json()["expired"] is None
        refused = await http.put("/api/topics/orders", json={"retention": "30m"})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-168")
        assert "3 messages of 'orders' are older than the retention, 3 of them" in refused.json()["message"]
        assert "retention_ms" not in (await http.get("/api/topics/orders")).json()
        fewer = {"retention": "30m", "discard": True, "seen": {"unfinished": 2}}
        refused = await http.put("/api/topics/orders", json=fewer)
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        told = "its unfinished messages older than the retention from 2 to 3"
        assert told in refused.json()["message"]
        wanted = {"retention": "30m", "discard": True, "reason": "old prices", "seen": {"unfinished": 3}}
        altered = (await http.put("/api/topics/orders", json=wanted)).json()
        assert (altered["retention_ms"], altered["expired"]["unfinished"]) == ("1800000", 3)
        one = (await http.get("/api/topics/orders")).json()
        assert (one["retention_ms"], one["queues"][0]["min_offset"]) == ("1800000", "3")
        [entry] = (await http.get("/api/journal", params={"about": "old prices"})).json()["entries"]
        assert (entry["verb"], entry["reason"], entry["verdict"]) == ("topics alter", "old prices", "done")
        await http.put("/api/topics/orders", json={"retention": "none"})
        assert "retention_ms" not in (await http.get("/api/topics/orders")).json()
        ignored = await http.put("/api/topics/orders", json={"queue_count": 2, "seen": {"unfinished": 0}})
        assert (ignored.status_code, ignored.json()["code"]) == (400, "TW-130")
        assert "seen.unfinished" in ignored.json()["message"]
        for wrong in ("soon", "30", "1ms", "99999999d", ""):
            assert (await http.put("/api/topics/orders", json={"retention": wrong})).status_code == 400, wrong
        assert (await http.get("/api/topics/orders/use", params={"retention": "x"})).status_code == 400

    at_desk(scenario)


def test_the_timers_of_a_topic_are_held_and_released(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await desk.set("orders", "1m", timer_key="k")
        refused = await http.post("/api/topics/orders/release", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-169")
        held = (await http.post("/api/topics/orders/hold", json={"reason": "closed"})).json()
        assert (held["timers"], held["hold"]["per_second"], held["hold"]["held"]) == (1, None, 0)
        assert (await http.post("/api/topics/orders/hold", json={})).status_code == 409
        assert (await http.post("/api/topics/none/hold", json={})).status_code == 404
        await desk.advance("1h")
        shown = (await http.get("/api/topics/orders")).json()["hold"]
        since_ms = int(shown.pop("since_ms"))
        now_ms = int((await http.get("/api/timers/summary")).json()["now_ms"])
        assert shown == {"reason": "closed", "per_second": None, "held": 1}
        timer = (await http.get("/api/timers/one?topic=orders&key=k")).json()
        assert (timer["state"], int(timer["due_ms"]) < now_ms) == ("held", True)
        summary = (await http.get("/api/timers/summary")).json()
        assert (summary["pending"], summary["next_due_ms"], summary["due"][-1]["count"]) == (1, None, 0)
        expected = {"topic": "orders", "held": 1, "since_ms": str(since_ms), "reason": "closed"}
        assert summary["held"] == [expected | {"per_second": None}]
        found = (await http.get("/api/timers?held=true")).json()["timers"]
        assert [one["timer_key"] for one in found] == ["k"]
        assert not (await http.get("/api/timers?held=false")).json()["timers"]
        metrics = (await http.get("/metrics")).text
        assert re.search(r'mq_timer_held\{.*topic="orders"\} 1.0', metrics)
        assert (await http.post("/api/topics/orders/release", json={"per_second": -1})).status_code == 400
        released = await http.post("/api/topics/orders/release", json={"per_second": 5, "reason": "open"})
        assert released.json()["hold"]["per_second"] == 5
        await desk.advance("1s")
        assert (await http.get("/api/topics/orders/use")).json()["messages"] == 1
        assert (await http.get("/api/topics/orders")).json()["hold"] is None
        noted = (await http.get("/api/journal?about=orders")).json()["entries"]
        acts = [(one["verb"], one["reason"], one["verdict"]) for one in noted if one["verdict"] != "TW-169"]
        assert acts[:2] == [("topics release", "open", "done"), ("topics hold", "closed", "done")]
        metrics = (await http.get("/metrics")).text
        assert re.search(r'mq_lateness_cause_total\{cause="held",.*topic="orders"\} 1.0', metrics)

    at_desk(scenario)


def test_a_held_timer_that_is_fired_is_not_told_as_early(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http, name = desk.http, {"topic": "orders", "key": "k"}
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await http.post("/api/topics/orders/hold", json={})
        await desk.set("orders", "1m", timer_key="k")
        await desk.advance("1h")
        assert (await http.post("/api/timers/fire", json=name)).json()["verdict"] == "FIRED"
        ended = (await http.get("/api/timers/one", params=name)).json()
        assert (ended["what"], ended["note"]) == ("fired", "while it was held, on request")

    at_desk(scenario)


def test_a_list_counts_messages_where_it_is_asked_to(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.http.post("/api/topics", json={"name": "empty"})
        for number in range(3):
            await desk.http.post("/api/messages", json={"topic": "t", "body": str(number)})
        plain = (await desk.http.get("/api/topics")).json()
        assert [sorted(one) for one in plain["topics"]] == [
            ["hold", "message_type", "name", "queue_count"]
        ] * 2
        assert plain["retention"] == {"age_ms": None, "log_bytes_max": None}
        counted = (await desk.http.get("/api/topics?counts=true")).json()["topics"]
        assert [(one["name"], one["message_count"]) for one in counted] == [("empty", 0), ("t", 3)]

    at_desk(scenario)


def test_a_topic_says_since_when_each_queue_has_messages(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 2})
        await desk.http.post("/api/messages", json={"topic": "t", "body": "x"})
        shown = (await desk.http.get("/api/topics/t?oldest=true")).json()
        assert sorted(str(one["oldest_ms"]) for one in shown["queues"]) == [str(START_MS), "None"]
        assert all("oldest_ms" not in one for one in (await desk.http.get("/api/topics/t")).json()["queues"])

    at_desk(scenario)


def test_the_newest_messages_are_those_of_all_queues_and_go_on_with_arrivals(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        for number in range(9):
            await desk.http.post("/api/messages", json={"topic": "t", "body": str(number)})
        found = (await desk.http.get("/api/topics/t/newest?limit=4")).json()
        assert [one["body"] for one in found["messages"]] == ["8", "7", "6", "5"]
        await desk.http.post("/api/messages", json={"topic": "t", "body": "9"})
        after = (await desk.http.get(f"/api/topics/t/arrivals?after={found['after']}")).json()
        assert [one["body"] for one in after["messages"]] == ["9"]
        large = (await desk.http.get("/api/topics/t/newest?bytes_max=2")).json()["messages"]
        assert [one["body"] for one in large] == ["9", "8"]
        one = (await desk.http.get("/api/topics/t/newest?bytes_max=0")).json()["messages"]
        assert [one["body"] for one in one] == ["9"]

    at_desk(scenario)


@pytest.mark.parametrize(("query", "status"), [("", 404), ("?limit=-1", 400), ("?bytes=1", 400)])
def test_a_wrong_look_at_the_newest_is_refused(at_desk: Any, query: str, status: int) -> None:
    async def scenario(desk: Any) -> None:
        if status != 404:
            await desk.http.post("/api/topics", json={"name": "t"})
        assert (await desk.http.get(f"/api/topics/t/newest{query}")).status_code == status

    at_desk(scenario)


def test_a_change_by_another_caller_refuses_settings_that_were_seen_before(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http, path = desk.http, "/api/topics/orders"
        await http.post("/api/topics", json={"name": "orders", "message_type": "NORMAL", "queue_count": 4})
        seen = {"message_type": "NORMAL", "queue_count": 4, "retention": "none"}
        wanted = {"retention": "60m", "seen": seen}
        await http.put(path, json={"retention": "7d", "message_type": "MIXED"})
        refused = await http.put(path, json=wanted)
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        told = (
            "'orders' was changed since you saw it: its type from NORMAL to MIXED; its retention from none "
            "to 7d. Look at it again, and decide anew."
        )
        assert told in refused.json()["message"]
        assert (await http.get(path)).json()["retention_ms"] == str(7 * 86_400_000)
        assert (await http.put(path, json=wanted | {"seen": {"queue_count": 4}})).status_code == 200
        again = await http.put(path, json={"retention": "60m", "seen": {"retention": "7d"}})
        assert again.status_code == 200, "a request may be repeated"
        wrong = await http.put(path, json={"retention": "1h", "seen": {"retention": "soon"}})
        assert (wrong.status_code, "seen.retention" in wrong.json()["message"]) == (400, True)
        assert (await http.put("/api/topics/none", json=wanted)).status_code == 404

    at_desk(scenario)


def test_of_two_callers_who_saw_the_same_topic_one_changes_it(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 4})
        seen = {"queue_count": 4}
        calls = [http.put("/api/topics/orders", json={"queue_count": n, "seen": seen}) for n in range(5, 25)]
        answers = await asyncio.gather(*calls)
        assert sorted(one.status_code for one in answers) == [200, *[409] * 19]
        [changed] = [one.json()["queue_count"] for one in answers if one.status_code == 200]
        assert (await http.get("/api/topics/orders")).json()["queue_count"] == changed

    at_desk(scenario)


def test_no_more_is_discarded_than_its_caller_saw(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http, path = desk.http, "/api/topics/orders"
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        for _ in range(3):
            await http.post("/api/messages", json={"topic": "orders", "body": "x"})
        wanted = {"discard": True, "seen": {"unfinished": 2}}
        query = {"discard": "true", "seen_unfinished": "2"}
        for verb, refused in (
            ("purge", await http.post(f"{path}/purge", json=wanted)),
            ("delete", await http.delete(path, params=query)),
        ):
            assert (refused.status_code, refused.json()["code"]) == (409, "TW-160"), verb
            told = "'orders' was changed since you saw it: its unfinished messages from 2 to 3"
            assert told in refused.json()["message"]
        assert (await http.get(f"{path}/use")).json()["unfinished"] == 3
        purged = await http.post(f"{path}/purge", json=wanted | {"seen": {"unfinished": 5}})
        assert (purged.status_code, purged.json()["unfinished"]) == (200, 3)
        assert (await http.delete(path, params=query)).status_code == 200

    at_desk(scenario)


def test_a_hold_that_another_caller_has_changed_is_not_released(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http, path = desk.http, "/api/topics/orders"
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await desk.advance("1h")  # the broker's clock and the real one differ
        await desk.set("orders", "1m", timer_key="k")
        await http.post(f"{path}/hold", json={"reason": "closed"})
        await desk.advance("1h")
        first = (await http.get(path)).json()["hold"]
        seen = {"since_ms": first["since_ms"], "per_second": None}
        await http.post(f"{path}/release", json={"per_second": 1, "seen": seen})
        refused = await http.post(f"{path}/release", json={"seen": seen})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        assert "its release from none to 1 per second" in refused.json()["message"]
        await http.post(f"{path}/hold", json={"reason": "a new price"})
        refused = await http.post(f"{path}/release", json={"seen": seen | {"per_second": 1}})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        assert "its hold from that of " in refused.json()["message"]
        found = (await http.get(path)).json()["hold"]
        seen = {"since_ms": found["since_ms"], "per_second": None}
        assert (await http.post(f"{path}/release", json={"seen": seen})).status_code == 200

    at_desk(scenario)
